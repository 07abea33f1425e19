"""What bench_train.py and bench_decode.py report alike: of which machine, and in which files."""

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

from peers import Record
from trials import write


def machine() -> Record:
    """What the figures are of."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        models = []
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def heading(report: Record) -> str:
    """The first line of a page."""
    of, n_threads = report["machine"], report["settings"]["threads"]
    return f"{of['cpu']}, {of['cores']} cores, {n_threads} threads; {of['system']}, Python {of['python']}\n"


def keep(report: Record, page: Callable[[Record], str], folder: Path | None, size: str) -> None:
    """SIZE.json and SIZE.md, written again after each run."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"{size}.json", json.dumps(report, indent=1) + "\n")
    write(folder / f"{size}.md", page(report))

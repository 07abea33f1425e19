"""Memory, tables and files of the benchmarks, without torch (see programs.py)."""

import json
import os
import platform
import re
import resource
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman import files
from dragoman.data.text import lines

FOLDER = Path("runs/bench")
Record = dict[str, Any]  # JSON values
Columns = Mapping[str, Callable[[list[Record]], str]]  # title -> function of the runs of one program


def machine() -> str:
    """Describe the machine that the figures belong to."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    cpu = f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores"
    return f"{cpu}; {platform.system()}, Python {platform.python_version()}"


def phrasebook(split: str) -> list[dict[str, str]]:
    """The written pairs of the included corpus, {"zh": ..., "en": ...}."""
    path = files.included("data/phrasebook/written") / f"{split}.jsonl.gz"
    return [json.loads(line)["translation"] for line in lines(path)]


def peak_mb() -> int:
    """Peak memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024  # macOS would count bytes


def measure_missing(folder: Path, names: Iterable[str], measure: Callable[[str], Record]) -> dict[str, Record]:
    """Measure each name without a file NAME.json; return the records of all files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (folder / f"{name}.json").exists():
            print(name, flush=True)
            files.write(folder / f"{name}.json", json.dumps(measure(name), ensure_ascii=False).encode())
    return {path.stem: json.loads(path.read_bytes()) for path in folder.glob("*.json")}


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown table."""
    return "".join("| " + " | ".join(cells) + " |\n" for cells in (header, ["---"] * len(header), *rows))


def comparison(runs: Iterable[Record], unit: str, speeds_of: Callable[[Record], list[float]], columns: Columns) -> str:
    """Table of programs, the fastest first, with ratios to the fastest torch peer."""
    groups: dict[str, list[Record]] = {}
    for run in runs:
        groups.setdefault(run["program"], []).append(run)
    speeds = {name: [speed for run in group for speed in speeds_of(run)] for name, group in groups.items()}
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    peers = [medians[name] for name, group in groups.items() if group[0]["is_peer"] and not name.startswith("ct2-")]
    columns = {
        **columns,
        "peak MB": lambda runs: f"{max(run['peak_rss_mb'] for run in runs):,}",
        "rounds": lambda runs: str(len(runs)),
    }
    rows = []
    for name in sorted(groups, key=medians.__getitem__, reverse=True):
        ratio = f"{medians[name] / max(peers):.2f}" if peers else "-"
        rows.append([name, spread(speeds[name]), ratio, *(column(groups[name]) for column in columns.values())])
    return markdown(["program", unit, "of the fastest torch peer", *columns], rows)


def spread(values: Sequence[float]) -> str:
    """'96.3 (95.0-97.1)': median, minimum and maximum; large ones without decimals."""
    digits = 0 if statistics.median(values) >= 1000 else 1
    middle, low, high = (f"{function(values):,.{digits}f}" for function in (statistics.median, min, max))
    return f"{middle} ({low}-{high})" if len(values) > 1 else middle


def mean_and_deviation(values: Sequence[float]) -> str:
    """'12.34 ± 0.56', by the sample deviation; '12.34' for one value, '-' for none."""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{deviation}" if values else "-"

"""Machine, tables and result files of the benchmarks."""

import json
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dragoman import files
from dragoman.training.machine import provenance

Record = dict[str, Any]  # JSON values


def machine() -> str:
    """Describe the machine that the figures belong to."""
    return f"{provenance()['cpu']}; {platform.system()}, Python {platform.python_version()}"


def save(report: Record, page: Callable[[Record], str], folder: Path | None, name: str) -> None:
    """Write NAME.json and NAME.md into `folder`, if there is one."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        files.write(folder / f"{name}.json", (json.dumps(report, indent=1) + "\n").encode())
        files.write(folder / f"{name}.md", page(report).encode())


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def spread(values: Sequence[float]) -> str:
    """'96.3 (95.0-97.1)': median, minimum and maximum; large ones without decimals."""
    digits = 0 if statistics.median(values) >= 1000 else 1
    middle, low, high = (f"{function(values):,.{digits}f}" for function in (statistics.median, min, max))
    return f"{middle} ({low}-{high})" if len(values) > 1 else middle


def mean_and_deviation(values: Sequence[float]) -> str:
    """'12.34 ± 0.56', the standard deviation of the sample; without it for one value, '-' for none."""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{deviation}" if values else "-"


def by_program(runs: Iterable[Record]) -> dict[str, list[Record]]:
    """The runs of each program, in their order."""
    groups: dict[str, list[Record]] = {}
    for run in runs:
        groups.setdefault(run["program"], []).append(run)
    return groups

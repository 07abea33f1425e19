"""Machine, tables and result files of the benchmarks. No torch is imported here: see programs.py."""

import os
import platform
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman import files

FOLDER = Path("runs/bench")
Record = dict[str, Any]  # JSON values


def machine() -> str:
    """Describe the machine that the figures belong to."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    cpu = f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores"
    return f"{cpu}; {platform.system()}, Python {platform.python_version()}"


def save(name: str, page: str) -> None:
    """Write runs/bench/NAME.md."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    files.write(FOLDER / f"{name}.md", page.encode())


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def comparison(
    runs: Iterable[Record],
    unit: str,
    speeds_of: Callable[[list[Record]], list[float]],
    columns: Mapping[str, Callable[[list[Record]], str]],
) -> str:
    """A row for each program, the fastest first, with its speed beside that of the fastest peer with torch.

    `speeds_of` and `columns` take the runs of one program.
    """
    groups: dict[str, list[Record]] = {}
    for run in runs:
        groups.setdefault(run["program"], []).append(run)
    medians = {name: statistics.median(speeds_of(group)) for name, group in groups.items()}
    peers = [medians[name] for name, group in groups.items() if group[0]["is_peer"] and not name.startswith("ct2-")]
    rows = []
    for name in sorted(groups, key=medians.__getitem__, reverse=True):
        ratio = f"{medians[name] / max(peers):.2f}" if peers else "-"
        cells = [column(groups[name]) for column in columns.values()]
        rows.append([name, spread(speeds_of(groups[name])), ratio, *cells])
    return markdown(["program", unit, "of the fastest torch peer", *columns], rows)


def spread(values: Sequence[float]) -> str:
    """'96.3 (95.0-97.1)': median, minimum and maximum; large ones without decimals."""
    digits = 0 if statistics.median(values) >= 1000 else 1
    middle, low, high = (f"{function(values):,.{digits}f}" for function in (statistics.median, min, max))
    return f"{middle} ({low}-{high})" if len(values) > 1 else middle


def mean_and_deviation(values: Sequence[float]) -> str:
    """'12.34 ± 0.56', the standard deviation of the sample; without it for one value, '-' for none."""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{deviation}" if values else "-"

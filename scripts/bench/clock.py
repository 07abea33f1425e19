"""Clocks of a process and of the machine it runs on."""

import os
import resource
import sys
import time
from pathlib import Path
from typing import NamedTuple


class Clock(NamedTuple):
    """Seconds: of the wall clock, of all processors in use, of this process on processors."""

    wall: float
    busy: float
    own: float

    def since(self, start: "Clock") -> "Clock":
        """The seconds between two readings."""
        return Clock(*(now - then for now, then in zip(self, start, strict=True)))

    @property
    def others(self) -> float:
        """Share of the machine that other processes used; 0 where the system does not count it."""
        return max(0.0, self.busy - self.own) / self.wall / (os.cpu_count() or 1)


def read_clock() -> Clock:
    """Read all clocks."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        busy = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # without idle and iowait
    except OSError:
        busy = 0.0
    return Clock(time.perf_counter(), busy, time.process_time())


def peak_mb() -> int:
    """Megabytes of memory that this process and its children held at most."""
    peaks = [resource.getrusage(whose).ru_maxrss for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return round(sum(peaks) / (2**20 if sys.platform == "darwin" else 2**10))

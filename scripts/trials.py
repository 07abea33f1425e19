"""A comparison: one measurement for several rows, each with several seeds, in as many sittings as it takes.

What compare_positions.py and compare_choices.py share. It knows in which order trials are made (every row gets its
first seed before any gets its second, so that an early table is a fair one), that a finished trial is a small JSON
file and is never made again, how the seeds of a row become mean ± standard deviation, and when the difference
between two rows is noise. It refuses to know what is measured.

A row is a name and its settings: all that decides its result apart from the seed. They are written into the results,
and results of other settings are refused rather than mixed with the new ones.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.doors import new_file
from dragoman.errors import UserError, suggest

SEEDS = (1, 2, 3)
# Student's t for 1, 2, 3 ... degrees of freedom: 95 % of its distribution lies between -t and t
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)

Settings = dict[str, Any]  # JSON values
Scores = dict[str, Any]  # what one trial found: numbers, and words that belong to them


@dataclass(frozen=True, kw_only=True)
class Trials:
    """The trials of `rows`, {name: settings}, whose results lie in `folder`; `shown` is the score told at once."""

    rows: Mapping[str, Settings]
    folder: Path
    shown: str

    def finished(self, row: str) -> list[Scores]:
        """The results of a row so far, in the order of the seeds. Raises UserError where settings have changed."""
        return [found for seed in SEEDS if (found := self._read(row, seed)) is not None]

    def unfinished(self) -> list[tuple[str, int]]:
        """(row, seed) of the trials that are still to be made, in the order in which to make them."""
        return [(row, seed) for seed in SEEDS for row in self.rows if self._read(row, seed) is None]

    def make(
        self,
        measure: Callable[[str, int], Scores],
        after_each: Callable[[], None],
        *,
        minutes: float | None = None,
        only: Iterable[str] | None = None,
    ) -> None:
        """Make what is unfinished: `measure(row, seed)`, its scores kept, then `after_each()`.

        `only`: rows to make now. `minutes`: no trial is begun that would end later if it took as long as the longest
        so far.
        """
        chosen = self._chosen(only)
        todo = [(row, seed) for row, seed in self.unfinished() if row in chosen]
        seconds = [float(found["seconds"]) for row in self.rows for found in self.finished(row)]
        start = time.monotonic()
        for n, (row, seed) in enumerate(todo):
            if minutes is not None and time.monotonic() - start + max(seconds, default=0) > 60 * minutes:
                print(f"{minutes:g} minutes: stopped with {len(todo) - n} to go; the same command goes on")
                return
            begin = time.monotonic()
            scores = measure(row, seed)
            scores["seconds"] = round(time.monotonic() - begin, 1)
            seconds.append(scores["seconds"])
            self._write(row, seed, scores)
            after_each()
            to_go = len(todo) - n - 1
            print(
                f"{row}, seed {seed}: {self.shown} {scores[self.shown]:.2f} after {scores['seconds']:.0f} s; "
                f"{to_go} to go, about {to_go * statistics.fmean(seconds) / 60:.0f} minutes",
                flush=True,
            )

    def _chosen(self, only: Iterable[str] | None) -> list[str]:
        names = list(self.rows if only is None else only)
        for name in names:
            if name not in self.rows:
                raise UserError(
                    f"there is no row '{name}'{suggest(name, self.rows)}; there are {', '.join(self.rows)}"
                )
        return names

    def _path(self, row: str, seed: int) -> Path:
        return self.folder / f"{row}-{seed}.json"

    def _read(self, row: str, seed: int) -> Scores | None:
        path = self._path(row, seed)
        if not path.exists():
            return None
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            settings, scores = record["settings"], record["scores"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path} is not a result: remove it, and it is measured again ({error})"
            ) from None
        if settings != self.rows[row]:
            raise UserError(
                f"{path} was measured with other settings than now: move the folder away, or name another --results"
            )
        return scores

    def _write(self, row: str, seed: int, scores: Scores) -> None:
        record = {"row": row, "seed": seed, "settings": self.rows[row], "scores": scores}
        self.folder.mkdir(parents=True, exist_ok=True)
        write(self._path(row, seed), json.dumps(record, ensure_ascii=False, indent=1) + "\n")


def write(path: Path, content: str | bytes) -> None:
    """A file, whole or not at all, in place of an older one."""
    with new_file(path, overwrite=True) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def mean_and_deviation(values: Sequence[float]) -> str:
    """'12.34 ± 0.56' (the sample's standard deviation); without ± for a single value, '-' for none."""
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def seeds_made(n: int) -> str:
    """How many seeds stand behind a row, and a mark where some are missing."""
    return str(n) if n == len(SEEDS) else f"{n} of {len(SEEDS)}, **unfinished**"


def differs(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two means differ by more than noise: Welch's t-test, two-sided, at 95 %.

    Each sample needs two values and has a variance of its own. Where nothing differs in truth, one test in twenty
    says that something does, at most: the degrees of freedom (Welch-Satterthwaite) are rounded down.
    """
    gap = abs(statistics.fmean(a) - statistics.fmean(b))
    errors = [(statistics.variance(values) / len(values), len(values) - 1) for values in (a, b)]
    squared_error = sum(error for error, _ in errors)
    if squared_error == 0:
        return gap > 0
    freedom = squared_error**2 / sum(error**2 / n for error, n in errors)
    t = T_95[min(max(1, int(freedom)), len(T_95)) - 1]
    return gap > t * squared_error**0.5


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)

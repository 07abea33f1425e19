"""Rows of unequal length on disk, memory-mapped: ids and sentences alike.

Knows: one flat file of values and one of n + 1 offsets; row i is `values[offsets[i] : offsets[i + 1]]`.
Sentences are rows of UTF-8 bytes. Only the rows that are asked for are read, and the operating system may
forget them again: a corpus costs disk, not memory.
Refuses to know: what the rows mean, languages, tokenizers.
"""

import itertools
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from dragoman import durable
from dragoman.data.corpus import Pair
from dragoman.errors import UserError


class Ragged:
    """n rows of `dtype` under the file names `stem`.values and `stem`.offsets.npy."""

    def __init__(self, stem: Path, dtype: str) -> None:
        self.stem, self.dtype = stem, dtype
        # As plain arrays over the mapped files: slices of np.memmap are objects of its own, and slow.
        self.offsets = np.asarray(np.load(f"{stem}.offsets.npy", mmap_mode="r"))  # (n + 1,) int64
        path = Path(f"{stem}.values")
        empty = path.stat().st_size == 0  # which mmap refuses
        self.values = np.empty(0, dtype) if empty else np.asarray(np.memmap(path, dtype, "r"))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def lengths(self) -> np.ndarray:
        """(n,) int32, how long each row is."""
        return np.diff(self.offsets).astype(np.int32)

    def __reduce__(self) -> tuple[object, tuple[Path, str]]:
        return Ragged, (self.stem, self.dtype)  # pickled by name: another process maps the same files


class RaggedWriter:
    """Appends rows; what it wrote is a `Ragged` once closed. Use as a context manager."""

    def __init__(self, stem: Path, dtype: str) -> None:
        self._stem, self._dtype = stem, dtype
        self._values = open(f"{stem}.values", "wb")  # noqa: SIM115 (closed in __exit__)
        self._lengths: list[np.ndarray] = []

    def append(self, values: np.ndarray | bytes, lengths: np.ndarray) -> None:
        """Rows one after the other in `values`, and how long each is."""
        self._values.write(values if isinstance(values, bytes) else values.astype(self._dtype).tobytes())
        self._lengths.append(lengths.astype(np.int32))

    def append_texts(self, texts: Sequence[bytes]) -> None:
        """Sentences as UTF-8."""
        self.append(b"".join(texts), np.fromiter(map(len, texts), np.int32, len(texts)))

    def __enter__(self) -> "RaggedWriter":
        return self

    def __exit__(self, *failure: object) -> None:
        self._values.close()
        ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *self._lengths]), dtype=np.int64)
        np.save(f"{self._stem}.offsets.npy", ends)


class Texts(Sequence[str]):
    """Sentences on disk."""

    def __init__(self, stem: Path) -> None:
        self._rows = Ragged(stem, "uint8")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row):  # type: ignore[no-untyped-def]  # int -> str; slices are not needed
        return self._rows[row].tobytes().decode()

    def chunk(self, start: int, stop: int) -> list[str]:
        """Rows start .. stop - 1, read in one piece."""
        offsets = self._rows.offsets[start : stop + 1]
        blob = self._rows.values[offsets[0] : offsets[-1]].tobytes()
        cuts = (offsets - offsets[0]).tolist()
        return [blob[a:b].decode() for a, b in itertools.pairwise(cuts)]


class PairTable(Sequence[Pair]):
    """Pairs on disk: `stem`.src, `stem`.tgt and `stem`.references."""

    def __init__(self, stem: Path) -> None:
        self.src, self.tgt = Texts(Path(f"{stem}.src")), Texts(Path(f"{stem}.tgt"))
        self._references = Texts(Path(f"{stem}.references"))

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, row):  # type: ignore[no-untyped-def]  # int -> Pair, slice -> list[Pair]
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(row)  # what ends a for loop over a Sequence
        row %= len(self)
        return Pair(self.src[row], self.tgt[row], tuple(self._references[row].split("\n")))


def once(folder: Path, fill: Callable[[Path], None]) -> bool:
    """Have `fill` write into a folder that appears as `folder` when it is done; True if it was there already.

    Neither a failure nor a kill leaves anything that looks whole (durable.py); a second process that wants the same
    folder waits and finds it. Raises `UserError` when the disk will not take it.
    """
    try:
        with one_at_a_time(folder):
            if folder.exists():
                return True
            _sweep(folder.parent)
            durable.replace_folder(folder, fill)
            return False
    except (OSError, durable.RefusalError) as error:
        why = error if isinstance(error, durable.RefusalError) else durable.refusal(folder, error)
        raise UserError(f"{why}; data.cache can name another place") from error


def _sweep(cache: Path) -> None:
    """Remove what others began to write here and were killed at: nobody holds its lock, and it may be gigabytes."""
    for left in cache.glob(".*.new"):
        with suppress(Timeout), one_at_a_time(cache / left.name[1 : -len(".new")]).acquire(timeout=0):
            shutil.rmtree(left, ignore_errors=True)


def one_at_a_time(path: Path) -> FileLock:
    """A lock for whoever is about to write `path`: the second process waits and then finds it written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.parent / f".{path.name}.lock")

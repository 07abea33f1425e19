"""Memory-mapped rows of unequal length: ids, or sentences as UTF-8 bytes.

One flat file holds the values, another n + 1 offsets; row i is `values[offsets[i] : offsets[i + 1]]`. A corpus takes
disk space, not memory.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np


class Ragged:
    """n rows of unsigned integers in the files `stem`.values and `stem`.offsets.npy."""

    def __init__(self, stem: Path) -> None:
        self.stem, values = stem, Path(f"{stem}.values")
        # Plain arrays over the mapped files, because slicing np.memmap is slow.
        self.offsets = np.asarray(np.load(f"{stem}.offsets.npy", mmap_mode="r"))  # (n + 1,) int64
        n_values = int(self.offsets[-1])
        # mmap fails on an empty file. The type of the values follows from their size.
        self.values = np.empty(0, np.uint8)
        if n_values:
            self.values = np.asarray(np.memmap(values, f"u{values.stat().st_size // n_values}", "r"))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def texts(self, rows: np.ndarray) -> list[str]:
        """Return rows of bytes as sentences."""
        return [self[row].tobytes().decode() for row in rows.tolist()]

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        # Pickled by name: a worker process maps the same files.
        return Ragged, (self.stem,)


@contextmanager
def ragged_writer(stem: Path) -> Iterator[Callable[[bytes | memoryview, list[int]], None]]:
    """Yield a function that appends rows: concatenated values, and their lengths."""
    row_lengths = [np.zeros(1, np.int64)]
    with open(f"{stem}.values", "wb") as file:

        def append(values: bytes | memoryview, lengths: list[int]) -> None:
            file.write(values)
            row_lengths.append(np.array(lengths, np.int64))

        yield append
    np.save(f"{stem}.offsets.npy", np.cumsum(np.concatenate(row_lengths)))

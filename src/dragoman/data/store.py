"""Memory-mapped rows of unequal length: ids and sentences.

One flat file holds the values, another n + 1 offsets; row i is `values[offsets[i] : offsets[i + 1]]`. Sentences
are rows of UTF-8 bytes. A corpus takes disk space, not memory.
"""

from pathlib import Path

import numpy as np


class Ragged:
    """n rows of `dtype` in the files `stem`.values and `stem`.offsets.npy."""

    def __init__(self, stem: Path, dtype: str) -> None:
        self.stem, self.dtype = stem, dtype
        # Plain arrays over the mapped files, because slicing np.memmap is slow.
        self.offsets = np.asarray(np.load(f"{stem}.offsets.npy", mmap_mode="r"))  # (n + 1,) int64
        # mmap fails on an empty file.
        self.values = np.asarray(np.memmap(f"{stem}.values", dtype, "r")) if self.offsets[-1] else np.empty(0, dtype)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return several rows, concatenated in one array, and their lengths."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        shifts = np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        return self.values[shifts + np.arange(len(shifts))], lengths

    def lengths(self) -> np.ndarray:
        """(n,) int32, the length of each row."""
        return np.diff(self.offsets).astype(np.int32)

    def __reduce__(self) -> tuple[object, tuple[Path, str]]:
        # Pickled by name: a worker process maps the same files.
        return Ragged, (self.stem, self.dtype)


class RaggedWriter:
    """Context manager that appends rows to a new Ragged."""

    def __init__(self, stem: Path) -> None:
        self._stem, self._lengths = stem, [np.zeros(1, np.int64)]
        self._values = open(f"{stem}.values", "wb")  # noqa: SIM115 (closed in __exit__)

    def append(self, values: bytes | memoryview, lengths: list[int]) -> None:
        """Append rows of these `lengths`, concatenated in `values`."""
        self._values.write(values)
        self._lengths.append(np.array(lengths, np.int64))

    def __enter__(self) -> "RaggedWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self._values.close()
        np.save(f"{self._stem}.offsets.npy", np.cumsum(np.concatenate(self._lengths)))


class Texts:
    """Sentences on disk."""

    def __init__(self, stem: Path) -> None:
        self._rows = Ragged(stem, "uint8")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> str:
        return self._rows[row].tobytes().decode()

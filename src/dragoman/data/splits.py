"""Who is in which split: duplicates, leaks, and splits that a corpus does not bring, as arithmetic on hashes.

Knows: 64-bit hashes of sentences, one array per side. A million pairs cost 16 MB, and two different sentences
fall together by chance about once in 10 million such corpora.
Refuses to know: text, files.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Hashes(NamedTuple):
    """One hash per sentence of n pairs."""

    src: np.ndarray  # (n,) uint64
    tgt: np.ndarray

    def pairs(self) -> np.ndarray:
        """(n,) uint64, one hash per pair; (a, b) and (b, a) differ."""
        src, tgt = self
        mixed = (src ^ (src >> np.uint64(29))) * np.uint64(
            0x9E3779B97F4A7C15
        ) + tgt  # wraps around, as is meant
        return (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)

    def at(self, rows: np.ndarray) -> "Hashes":
        """The hashes of some rows, by number or by mask."""
        return Hashes(self.src[rows], self.tgt[rows])

    def leaks(self, held: "Hashes", sentence: bool) -> np.ndarray:
        """(n,) bool, True for pairs that are also in `held`, or that share one `sentence` of either side with
        it."""
        if sentence:
            return np.isin(self.src, held.src) | np.isin(self.tgt, held.tgt)
        return np.isin(self.pairs(), held.pairs())

    @classmethod
    def joined(cls, parts: "Sequence[Hashes]") -> "Hashes":
        """One after the other."""
        nothing = np.empty(0, np.uint64)
        return (
            cls(*(np.concatenate([nothing, *side]) for side in zip(*parts, strict=True)))
            if parts
            else cls(nothing, nothing)
        )


def hashes(texts: Sequence[bytes]) -> np.ndarray:
    """(n,) uint64, the same on every machine and in every run."""
    return np.frombuffer(b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts), np.uint64)


def first_occurrences(values: np.ndarray) -> np.ndarray:
    """(n,) bool, True where a value is seen for the first time."""
    first = np.zeros(len(values), bool)
    first[np.unique(values, return_index=True)[1]] = True
    return first


def cut(train: Hashes, candidates: np.ndarray, size: int) -> np.ndarray:
    """Up to `size` row numbers out of `candidates` for a held-out split, but no more than 2 % of the
    candidates.

    Chosen by the pairs' hashes alone: neither the order of the corpus nor a seed matters. Pairs whose
    sentences occur nowhere else come first: every other pair that shares a sentence with the split has to
    leave the training data, and this way hardly any does.
    """
    among = train.at(candidates)
    shared = _occurrences(among.src) + _occurrences(among.tgt)
    order = np.lexsort((among.pairs(), shared))
    return np.sort(candidates[order[: min(size, max(1, len(candidates) // 50))]])


def _occurrences(values: np.ndarray) -> np.ndarray:
    """(n,) how often each row's value occurs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return counts[inverse]

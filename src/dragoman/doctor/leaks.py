"""Which training sentences are nearly the same as one that was held out.

Knows: MinHash (Broder 1997) over character n-grams of the folded text (letters and digits only, without case and
width), with locality-sensitive bands to find candidates and the exact Jaccard similarity to judge them. Only what
was held out is indexed, so the cost in memory does not grow with the training corpus.
Refuses to know: where sentences come from, pairs, and sentences shorter than one n-gram: short ones are alike by
chance, and exact copies are found by their hashes.
"""

from typing import NamedTuple

import numpy as np

from dragoman.doctor.characters import Sentences, folded

NEAR = 0.7  # of all n-grams of two sentences, the share both have: one word changed in ten leaves about this much
BANDS, ROWS = (
    8,
    3,
)  # finds 97 of 100 sentences at NEAR, 99.7 at 0.8, and one in five at 0.3, to be judged exactly
MOST = 50_000  # held-out sentences that are indexed


class Grams(NamedTuple):
    """Hashed n-grams of n sentences, in their order."""

    values: np.ndarray  # (g,) uint32
    rows: np.ndarray  # (g,) int64

    def of(self, row: int) -> set[int]:
        """The different n-grams of one sentence."""
        first, last = np.searchsorted(self.rows, (row, row + 1))
        return set(self.values[first:last].tolist())


def grams(sentences: Sentences, n: int) -> Grams:
    """All runs of `n` folded characters within a sentence."""
    letters = folded()[sentences.points]
    kept = letters > 0
    letters, rows = letters[kept].astype(np.uint64), sentences.rows[kept]
    if len(letters) < n:
        return Grams(np.empty(0, np.uint32), np.empty(0, np.int64))
    last = len(letters) - n + 1
    values = letters[:last]
    for i in range(1, n):
        values = values * np.uint64(0x9E3779B97F4A7C15) + letters[i : last + i]  # wraps around, as is meant
    values = (values ^ (values >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    whole = rows[:last] == rows[n - 1 :]
    return Grams((values >> np.uint64(32)).astype(np.uint32)[whole], rows[:last][whole])


def signatures(found: Grams) -> tuple[np.ndarray, np.ndarray]:
    """(m,) the sentences that have n-grams, and (m, BANDS * ROWS) uint32: the share in which two of them agree is
    their similarity, give or take 0.1."""
    begins = np.flatnonzero(np.diff(found.rows, prepend=-1))
    least = np.zeros((len(begins), BANDS * ROWS), np.uint32)
    chance = np.random.default_rng(20)
    for number in range(BANDS * ROWS if len(begins) else 0):
        factor, term = chance.integers(0, 2**32, 2, dtype=np.uint32)
        least[:, number] = np.minimum.reduceat(found.values * (factor | np.uint32(1)) + term, begins)
    return found.rows[begins], least


def bands(least: np.ndarray) -> np.ndarray:
    """(m, BANDS) uint64 of signatures: two sentences that agree in a band are candidates."""
    key = np.tile(np.arange(BANDS, dtype=np.uint64), (len(least), 1))
    for row in range(ROWS):
        key = (key ^ least[:, row::ROWS]) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(32)
    return key


class HeldOut:
    """One side of validation and test, to be asked which of its sentences others are near to."""

    def __init__(self, texts: list[str], n: int) -> None:
        self.n = n
        self._grams = grams(Sentences.of(texts[:MOST]), n)
        self._rows, self._least = signatures(self._grams)  # (h,) and (h, BANDS * ROWS)
        keys = bands(self._least)
        order = np.argsort(keys, axis=None)
        self._keys, self._places = keys.ravel()[order], order // BANDS

    def near(self, sentences: Sentences) -> np.ndarray:
        """(m, 2) int64, each a row of `sentences` and one held out whose similarity is NEAR or more."""
        if not len(self._keys):
            return np.empty((0, 2), np.int64)
        found = grams(sentences, self.n)
        rows, least = signatures(found)
        here, there = self._candidates(bands(least))
        alike = (least[here] == self._least[there]).mean(axis=1) >= NEAR - 0.25  # be it estimated too low
        pairs = np.stack((rows[here[alike]], self._rows[there[alike]]), axis=1)
        return pairs[[self._similarity(found, *pair) >= NEAR for pair in pairs.tolist()]]

    def _candidates(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which signatures, given by their (m, BANDS) keys, agree with which held out ones in any band."""
        places, wanted = np.repeat(np.arange(len(keys)), BANDS), keys.ravel()
        first = np.searchsorted(self._keys, wanted)
        hit = self._keys[np.minimum(first, len(self._keys) - 1)] == wanted
        first, wanted, places = first[hit], wanted[hit], places[hit]
        lengths = np.searchsorted(self._keys, wanted, "right") - first
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        both = np.repeat(places, lengths), self._places[np.repeat(first, lengths) + within]
        here, there = np.unique(np.stack(both), axis=1)
        return here, there

    def _similarity(self, found: Grams, row: int, held: int) -> float:
        one, other = found.of(row), self._grams.of(held)
        shared = len(one & other)
        return shared / (len(one) + len(other) - shared)

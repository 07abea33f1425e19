"""Who is in which split: duplicates, leaks, and splits that a corpus does not bring, as arithmetic on hashes.

Knows: 64-bit hashes of sentences, one array per side. A million pairs cost 16 MB, and two different sentences fall
together by chance about once in 10 million such corpora.
Refuses to know: text, files.
"""

import hashlib
from collections.abc import Sequence

import numpy as np


def hashes(texts: Sequence[bytes]) -> np.ndarray:
    """(n,) uint64, the same on every machine and in every run."""
    return np.frombuffer(b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts), np.uint64)


def pair_hashes(src: np.ndarray, tgt: np.ndarray) -> np.ndarray:
    """(n,) uint64 of pairs, from the hashes of their sides; (a, b) and (b, a) differ."""
    mixed = (src ^ (src >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15) + tgt  # wraps around, as is meant
    return (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)


def first_occurrences(values: np.ndarray) -> np.ndarray:
    """(n,) bool, True where a value is seen for the first time."""
    first = np.zeros(len(values), bool)
    first[np.unique(values, return_index=True)[1]] = True
    return first


def sharing(src: np.ndarray, tgt: np.ndarray, held_src: np.ndarray, held_tgt: np.ndarray) -> np.ndarray:
    """(n,) bool, True where a pair shares a sentence, of either side, with the held-out ones."""
    return np.isin(src, held_src) | np.isin(tgt, held_tgt)


def cut(src: np.ndarray, tgt: np.ndarray, size: int) -> np.ndarray:
    """Up to `size` row numbers for a held-out split, chosen by the pairs' hashes alone: neither the order of the corpus
    nor a seed matters, so a corpus that grows keeps most of its split.

    Pairs whose sentences occur nowhere else come first: every other pair that shares a sentence with the split has
    to leave the training data, and this way hardly any does.
    """
    shared = _occurrences(src) + _occurrences(tgt)
    order = np.lexsort((pair_hashes(src, tgt), shared))
    return np.sort(order[:size])


def _occurrences(values: np.ndarray) -> np.ndarray:
    """(n,) how often each row's value occurs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return counts[inverse]

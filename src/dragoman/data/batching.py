"""Batch plans: batch samplers without state.

The batches of an epoch depend only on the lengths, the seed and the number of the epoch. A resumed run therefore
computes its position by a division, and does not replay batches.

The size of a batch is its number of pairs x its longest sentence, source or target. It is at most `max_tokens`. Pairs
are sorted by the length of the longer side, then by the difference between source and target. The direction of the
second sort alternates from one length to the next, so neighbours stay similar and both sides have little padding.
Pairs of equal lengths are shuffled in each epoch, so batch boundaries are the same in every epoch.
"""

import itertools
from collections.abc import Sequence

import numpy as np

# Epoch 0 begins with this number of longest batches; with more ranks, with one for each.
_LONGEST_FIRST = 8


def length_batches(lengths: Sequence[int] | np.ndarray, max_tokens: int, rows_per: int = 1) -> list[list[int]]:
    """Return batches of indices, longest first, of at most `max_tokens` positions.

    A sentence takes `rows_per` rows, e.g. the beam size. A sentence that exceeds `max_tokens` is a batch of its own.
    """
    lengths = np.asarray(lengths, np.int64)
    order = np.argsort(-lengths, kind="stable")
    boundaries = _boundaries(lengths[order] * rows_per, max_tokens)
    return [order[start:stop].tolist() for start, stop in itertools.pairwise(boundaries)]


def _boundaries(longest: np.ndarray, max_tokens: int) -> np.ndarray:
    """Return the boundaries (n_batches + 1,) of batches; `longest` is descending."""
    boundaries = [0]
    while (start := boundaries[-1]) < len(longest):
        n_rows = max(1, max_tokens // max(1, int(longest[start])))
        boundaries.append(min(len(longest), start + n_rows))
    return np.array(boundaries)


def _sorted_pairs(src: np.ndarray, tgt: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
    """Return pair indices (n,), longest first; `rng` shuffles pairs of equal lengths."""
    longest = np.maximum(src, tgt)
    difference = np.where(longest % 2 == 0, src - tgt, tgt - src)
    order = np.arange(len(longest)) if rng is None else rng.permutation(len(longest))
    return order[np.lexsort((difference[order], -longest[order]))]


class BatchPlan:
    """The batches of every epoch, for one rank of `world_size`.

    `src` and `tgt` are the lengths of the pairs in token ids, including <EOS>. Each pair goes to one rank, once per
    epoch. All ranks have the same number of batches. If `world_size` does not divide the total, the first batches of
    the epoch are repeated, at most world_size - 1 of them.
    """

    def __init__(
        self, src: np.ndarray, tgt: np.ndarray, max_tokens: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self._src, self._tgt = src, tgt
        self._seed, self._rank, self._world_size = seed, rank, world_size
        order = _sorted_pairs(src, tgt)
        src, tgt = src[order], tgt[order]
        self._boundaries = _boundaries(np.maximum(src, tgt), max_tokens)
        starts, n_rows = self._boundaries[:-1], np.diff(self._boundaries)
        src_width, tgt_width = (np.maximum.reduceat(side, starts).astype(np.int64) for side in (src, tgt))
        n_tokens = np.add.reduceat(tgt, starts, dtype=np.int64)
        # (n_batches, 4) of all ranks, longest first: number of pairs, padded lengths of src and tgt, target tokens
        self.shapes = np.stack([n_rows, src_width, tgt_width, n_tokens], axis=1)
        self.batches_per_epoch = -(-len(starts) // world_size)  # per rank

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Return the pair indices of each batch of this rank.

        Epoch 0 begins with the longest batches, so that an out-of-memory error occurs at the first step.
        """
        rng = np.random.default_rng((self._seed, epoch))
        pairs = _sorted_pairs(self._src, self._tgt, rng)
        n_batches = len(self.shapes)
        order = rng.permutation(n_batches)
        if epoch == 0:
            longest_first = np.arange(min(max(_LONGEST_FIRST, self._world_size), n_batches))
            order = np.concatenate([longest_first, order[order >= len(longest_first)]])
        # np.resize repeats the order from its beginning, so that every rank has the same number of batches.
        order = np.resize(order, self.batches_per_epoch * self._world_size)
        batches = np.split(pairs, self._boundaries[1:-1])
        return [batches[i] for i in order[self._rank :: self._world_size]]

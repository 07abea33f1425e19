"""Batches: which pairs they hold, and how their ids are padded and shifted.

Teacher forcing gives the decoder `<BOS> y1 .. yn` and trains it to predict `y1 .. yn <EOS>`. The shift happens
only here: model, loss and search use `tgt_in` and `tgt_out` unchanged. The source ends in <EOS> and has no <BOS>.

The batches of an epoch depend only on the lengths, the seed and the number of the epoch. A resumed run therefore
computes its position by a division, and does not replay batches.

The size of a batch is its number of pairs x its longest sentence, source or target. It is at most `max_tokens`. Pairs
are sorted by the length of the longer side, then by the difference between source and target. The direction of the
second sort alternates from one length to the next, so neighbours stay similar and both sides have little padding.
Pairs of equal lengths are shuffled in each epoch, so batch boundaries are the same in every epoch.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.special import BOS, EOS, PAD

# Epoch 0 begins with this number of longest batches; with more ranks, with one for each.
_LONGEST_FIRST = 8
Ids = Sequence[int] | np.ndarray  # of a sentence


@dataclass(kw_only=True)
class Batch:
    """B pairs with S source and T target positions; int64 ids, padded on the right.

    `n_tokens` and `places` are computed on the CPU, so that reading them needs no GPU synchronisation.
    """

    src: Tensor  # (B, S)  x1 .. xn <EOS>
    tgt_in: Tensor  # (B, T)  <BOS> y1 .. yn
    tgt_out: Tensor  # (B, T)  y1 .. yn <EOS>
    src_key_padding_mask: Tensor  # (B, S) bool, True = padding
    places: Tensor  # (n_tokens,) indices of the targets that are no padding in the flattened (B, T)
    n_tokens: int  # targets to predict, <EOS> included

    def to(self, device: torch.device | str) -> "Batch":
        """Move the tensors to `device`; to a GPU through pinned memory, without waiting."""
        pin = torch.device(device).type == "cuda"
        moved: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                moved[name] = (value.pin_memory() if pin else value).to(device, non_blocking=pin)
        return replace(self, **moved)


def collate(src_ids: Sequence[Ids], tgt_ids: Sequence[Ids], tags: np.ndarray | None = None) -> Batch:
    """Batch B rows of ids without special ids; `tags` (B, n) precede the sources."""
    (src, src_lengths), (tgt, tgt_lengths) = _pad(src_ids), _pad(tgt_ids)
    if tags is not None:
        src, src_lengths = np.hstack([tags, src]), src_lengths + tags.shape[1]
    rows = np.arange(len(src))
    src[rows, src_lengths] = EOS
    tgt_in = np.empty_like(tgt)
    tgt_in[:, 0] = BOS
    tgt_in[:, 1:] = tgt[:, :-1]
    tgt[rows, tgt_lengths] = EOS
    places = np.flatnonzero(np.arange(tgt.shape[1]) <= tgt_lengths[:, None])
    return Batch(
        src=torch.from_numpy(src),
        tgt_in=torch.from_numpy(tgt_in),
        tgt_out=torch.from_numpy(tgt),
        src_key_padding_mask=torch.from_numpy(np.arange(src.shape[1]) > src_lengths[:, None]),
        places=torch.from_numpy(places),
        n_tokens=len(places),
    )


def _pad(rows: Sequence[Ids]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids (B, longest + 1) padded on the right, and the lengths (B,)."""
    lengths = np.array(list(map(len, rows)), np.int64)
    is_id = np.arange(lengths.max() + 1) < lengths[:, None]
    padded = np.full(is_id.shape, PAD, np.int64)
    # An empty list would become an array of floats.
    padded[is_id] = np.concatenate(rows, dtype=np.int64, casting="unsafe")
    return padded, lengths


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

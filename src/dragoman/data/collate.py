"""Batches: which pairs they hold, and how their ids are padded and shifted.

Teacher forcing gives the decoder `<BOS> y1 .. yn` and trains it to predict `y1 .. yn <EOS>`. The shift happens only
here; model and loss use `tgt_in` and `tgt_out` as they are. The source ends in <EOS> and has no <BOS>.

The batches of an epoch depend only on the lengths, the settings, the seed and the number of the epoch. A resumed run
therefore computes its position by a division, and does not replay batches.

The size of a batch is its number of pairs x its longest sentence, source or target. Before sampling it is at most
`max_tokens`. Pairs are sorted by the length of the longer side, then by (source - target) length, rising for one
length and falling for the next. So neighbours are alike, and both sides have little padding. Each epoch shuffles the
order of the batches, and pairs of equal lengths; batch boundaries never change.

With `max_bucket` > 0 (bf16 on a CPU), lengths up to it are rounded up to 1 .. 8, 10, 12, 14, 16, 20 .., and batches
of more than 8 pairs, except the last, have a multiple of 8, so that shapes repeat (scripts/README.md, "Shapes").
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dragoman.config import DataConfig
from dragoman.special import BOS, EOS, PAD

if TYPE_CHECKING:
    from dragoman.data.prepare import Prepared

# Number of longest batches at the start of epoch 0, at least one per rank: if memory is short, the first step fails.
_LONGEST_FIRST = 8
Ids = Sequence[int] | np.ndarray  # of a sentence
Lengths = tuple[np.ndarray, np.ndarray]  # of sources and targets


@dataclass(kw_only=True)
class Batch:
    """B pairs with S source and T target positions; int64 ids, padded on the right.

    `n_tokens` and `tgt_indices` are computed on the CPU, so that reading them needs no GPU synchronisation.
    """

    src: Tensor  # (B, S)  x1 .. xn <EOS>
    tgt_in: Tensor  # (B, T)  <BOS> y1 .. yn
    tgt_out: Tensor  # (B, T)  y1 .. yn <EOS>
    src_key_padding_mask: Tensor  # (B, S) bool, True = padding
    tgt_indices: Tensor  # (n_tokens,) of the targets other than padding in the flattened (B, T)
    n_tokens: int  # targets to predict, <EOS> included

    def to(self, device: torch.device | str) -> "Batch":
        """Move the tensors to `device`; to a GPU through pinned memory, without waiting."""
        pin = torch.device(device).type == "cuda"
        tensors: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        moved = {name: (x.pin_memory() if pin else x).to(device, non_blocking=pin) for name, x in tensors.items()}
        return replace(self, **moved)


def collate(src_ids: Sequence[Ids], tgt_ids: Sequence[Ids], *, max_bucket: int = 0) -> Batch:
    """Return a batch of B sources and B targets, given without <BOS> and <EOS>."""
    (src, src_lengths), (tgt, tgt_lengths) = _pad(src_ids, max_bucket), _pad(tgt_ids, max_bucket)
    rows = np.arange(len(src))
    src[rows, src_lengths] = EOS
    tgt_in = np.empty_like(tgt)
    tgt_in[:, 0] = BOS
    tgt_in[:, 1:] = tgt[:, :-1]  # before <EOS> is written
    tgt[rows, tgt_lengths] = EOS
    tgt_indices = np.flatnonzero(np.arange(tgt.shape[1]) <= tgt_lengths[:, None])
    return Batch(
        src=torch.from_numpy(src),
        tgt_in=torch.from_numpy(tgt_in),
        tgt_out=torch.from_numpy(tgt),
        src_key_padding_mask=torch.from_numpy(np.arange(src.shape[1]) > src_lengths[:, None]),
        tgt_indices=torch.from_numpy(tgt_indices),
        n_tokens=len(tgt_indices),
    )


def _pad(rows: Sequence[Ids], max_bucket: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ids padded on the right, (B, longest + 1) or wider, and lengths (B,)."""
    lengths = np.array(list(map(len, rows)), np.int64)
    is_id = np.arange(_padded_lengths(lengths.max() + 1, max_bucket)) < lengths[:, None]
    padded = np.full(is_id.shape, PAD, np.int64)
    padded[is_id] = np.concatenate(rows, dtype=np.int64, casting="unsafe")  # NumPy makes floats of []
    return padded, lengths


def _padded_lengths(lengths: Any, max_bucket: int) -> Any:
    """Round up to three significant bits, at most to `max_bucket`; 0: not."""
    unit = 2 ** np.maximum(0, np.frexp(lengths)[1] - 3)
    return np.maximum(lengths, np.minimum(-(-lengths // unit) * unit, max_bucket))


def length_batches(lengths: Sequence[int] | np.ndarray, max_tokens: int, beam: int = 1) -> list[list[int]]:
    """Return batches of indices, longest first.

    A batch has at most `max_tokens` positions, or is one longer sentence. `beam`: rows of a sentence.
    """
    lengths = np.asarray(lengths, np.int64)
    order = np.argsort(-lengths, kind="stable")
    boundaries = _boundaries(lengths[order] * beam, max_tokens)
    return [batch.tolist() for batch in np.split(order, boundaries[1:-1])] if len(lengths) else []


def _boundaries(longest: np.ndarray, max_tokens: int, max_bucket: int = 0) -> np.ndarray:
    """Return the boundaries (n_batches + 1,) of batches; `longest` is descending."""
    boundaries = [0]
    while (start := boundaries[-1]) < len(longest):
        n_rows = max(1, max_tokens // max(1, int(longest[start])))
        n_rows -= n_rows % 8 if max_bucket and n_rows > 8 else 0
        boundaries.append(min(len(longest), start + n_rows))
    return np.array(boundaries)


def _sorted_pairs(src: np.ndarray, tgt: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
    """Return pair indices (n,), longest first; `rng` shuffles pairs of equal lengths."""
    longest = np.maximum(src, tgt)
    difference = np.where(np.unique(longest, return_inverse=True)[1] % 2 == 0, src - tgt, tgt - src)
    order = np.arange(len(longest)) if rng is None else rng.permutation(len(longest))
    return order[np.lexsort((difference[order], -longest[order]))]  # by the last key first


class BatchPlan:
    """The batches of every epoch, for one rank of `world_size`.

    `lengths` are those of the pairs in token ids, including <EOS>. Each pair goes to one rank, once per epoch,
    but up to world_size - 1 batches are repeated, so that all ranks have equally many (`np.resize`).
    """

    def __init__(
        self, lengths: Lengths, max_tokens: int, seed: int, rank: int = 0, world_size: int = 1, max_bucket: int = 0
    ) -> None:
        self._src, self._tgt = (_padded_lengths(side, max_bucket) for side in lengths)
        self._seed, self._rank, self._world_size = seed, rank, world_size
        order = _sorted_pairs(self._src, self._tgt)
        src, tgt = self._src[order], self._tgt[order]
        self._boundaries = _boundaries(np.maximum(src, tgt), max_tokens, max_bucket)
        starts, n_rows = self._boundaries[:-1], np.diff(self._boundaries)
        src_width, tgt_width = (np.maximum.reduceat(side, starts).astype(np.int64) for side in (src, tgt))
        n_tokens = np.add.reduceat(lengths[1][order], starts, dtype=np.int64)
        # (n_batches, 4) of all ranks, longest first: pairs, padded lengths of src and tgt, approximate target tokens
        self.shapes = np.stack([n_rows, src_width, tgt_width, n_tokens], axis=1)
        self.batches_per_epoch = -(-len(starts) // world_size)  # per rank

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Return the pair indices of each batch of this rank."""
        rng = np.random.default_rng((self._seed, epoch))
        pairs = _sorted_pairs(self._src, self._tgt, rng)
        n_batches = len(self.shapes)
        order = rng.permutation(n_batches)
        if epoch == 0:
            longest_first = np.arange(min(max(_LONGEST_FIRST, self._world_size), n_batches))
            order = np.concatenate([longest_first, order[order >= len(longest_first)]])
        order = np.resize(order, self.batches_per_epoch * self._world_size)
        batches = np.split(pairs, self._boundaries[1:-1])
        return [batches[i] for i in order[self._rank :: self._world_size]]

    def stream(self, consumed: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield epoch and pairs of each batch from number `consumed` on, without end."""
        epoch, position = divmod(consumed, self.batches_per_epoch)
        while True:
            for pairs in self.epoch(epoch)[position:]:
                yield epoch, pairs
            epoch, position = epoch + 1, 0


class BatchDataset(Dataset[Batch]):
    """Batches by epoch and pair indices, as BatchPlan.stream yields them.

    `sources[i]` is the row of the source of pair i of an epoch; `tags` (n_directions, 1 or 0) precede the sources.
    """

    def __init__(
        self, data: "Prepared", config: DataConfig, seed: int, sources: np.ndarray, tags: np.ndarray, max_bucket: int
    ) -> None:
        self._alpha, self._lowercase = config.tokenizer.sampling, config.lowercase
        self._max_length, self._max_bucket = config.max_length, max_bucket
        self._seed, self._sources, self._tags, self._ids = seed, sources, tags, data.train_ids
        self._tokenizers = data.src_tokenizer, data.tgt_tokenizer

    def __getitem__(self, index: tuple[int, np.ndarray]) -> Batch:
        epoch, pairs = index
        src = self._sources[pairs]
        # Stored pair i has the rows 2i and 2i + 1; in the reverse direction, 2i + 1 is the source.
        rows = list(zip(src.tolist(), pairs.tolist(), strict=True))
        src_ids, tgt_ids = ([self._tokens(row, side, epoch, pair) for row, pair in rows] for side in (0, 1))
        src_ids = list(map(np.append, self._tags[src % 2], src_ids))
        return collate(src_ids, tgt_ids, max_bucket=self._max_bucket)

    def _tokens(self, src: int, side: int, epoch: int, pair: int) -> Ids:
        """Return the ids of a side (0 = source): as stored, in lower case, or a sample.

        A sample depends only on seed, epoch, pair and row. It may be longer than the stored ids, which determine the
        batches. If it has more than max_length pieces, the stored ids are used, since positions may be limited.
        """
        row = src ^ side
        ids, tokenizer = self._ids[row], self._tokenizers[row % 2]
        if not (self._alpha or self._lowercase):
            return ids
        seed = zlib.crc32(f"{self._seed} {epoch} {pair} {row}".encode())
        lower = side == 0 and seed < self._lowercase * 2**32  # seed / 2**32 is uniform in [0, 1)
        if not (self._alpha or lower):
            return ids
        text = tokenizer.decode(ids.tolist())
        text = text.lower() if lower else text
        sample = tokenizer.sample(text, alpha=self._alpha, seed=seed) if self._alpha else tokenizer.encode(text)
        return sample if len(sample) <= self._max_length else ids

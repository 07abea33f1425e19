"""Rows of ids in, one `Batch` of tensors out: right padding, and the one shift of the target.

Knows: the special ids, how rows of unequal length become rectangles, and that teacher forcing feeds the
decoder `<BOS> y1 .. yn` and asks it for `y1 .. yn <EOS>`. The shift happens here and nowhere else: the model,
the loss and the search take `tgt_in` and `tgt_out` as they are.
Refuses to know: text, tokenizers, files, how rows were chosen.

Rectangles are filled without a Python loop over tokens: this is the path every training batch takes.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from dragoman.special import BOS, EOS, PAD


@dataclass(kw_only=True)
class Batch:
    """One padded batch: B sentence pairs, S source and T target positions, ids int64, padding on the right.

    The counts are taken once, on the CPU, so that asking for them never waits for a GPU.
    """

    src: Tensor  # (B, S)  x1 .. xn <EOS>
    tgt_in: Tensor  # (B, T)  <BOS> y1 .. yn
    tgt_out: Tensor  # (B, T)  y1 .. yn <EOS>
    src_key_padding_mask: Tensor  # (B, S) bool, True = padding
    tgt_key_padding_mask: Tensor  # (B, T) bool, True = padding
    n_tokens: int = field(init=False)  # target tokens to predict, <EOS> included
    padding_share: float = field(init=False)  # share of all positions, both sides, that are padding

    def __post_init__(self) -> None:
        src_padding, tgt_padding = int(self.src_key_padding_mask.sum()), int(self.tgt_key_padding_mask.sum())
        self.n_tokens = self.tgt_out.numel() - tgt_padding
        self.padding_share = (src_padding + tgt_padding) / max(1, self.src.numel() + self.tgt_out.numel())

    def __len__(self) -> int:
        """The number of sentence pairs."""
        return len(self.src)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The same batch with its tensors on `device`."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device, non_blocking=non_blocking))
        return moved


def rectangle(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
    """(B, width) int64: row b is `values[starts[b] : starts[b] + lengths[b]]`, then PAD.

    `values` is one flat array of ids, perhaps memory-mapped; only the ids asked for are read.
    """
    filled = np.arange(width) < lengths[:, None]  # (B, width)
    rows = np.full(filled.shape, PAD, dtype=np.int64)
    # Position of every wanted id in `values`, in the order in which boolean indexing visits the rectangle.
    first = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    rows[filled] = values[first + np.arange(len(first))]
    return rows


def batch_of(src: np.ndarray, src_lengths: np.ndarray, tgt: np.ndarray, tgt_lengths: np.ndarray) -> Batch:
    """The `Batch` of padded ids without special ids: `src` (B, at least longest + 1), `tgt` likewise, right
    padded.

    The spare last column makes room for <EOS>; `src` is changed in place.
    """
    every = np.arange(len(src))
    src[every, src_lengths] = EOS
    tgt_in = np.empty_like(tgt)
    tgt_in[:, 0] = BOS
    tgt_in[:, 1:] = tgt[:, :-1]
    tgt[every, tgt_lengths] = EOS
    return Batch(
        src=torch.from_numpy(src),
        tgt_in=torch.from_numpy(tgt_in),
        tgt_out=torch.from_numpy(tgt),
        src_key_padding_mask=torch.from_numpy(np.arange(src.shape[1]) > src_lengths[:, None]),
        tgt_key_padding_mask=torch.from_numpy(np.arange(tgt.shape[1]) > tgt_lengths[:, None]),
    )


def collate(src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> Batch:
    """A `Batch` of B rows of ids per side, none with special ids: they are added here.

    The source ends in <EOS> and takes no <BOS>: the encoder reads it whole and needs no place to start.
    """
    if len(src_ids) != len(tgt_ids) or not src_ids:
        raise ValueError(
            f"a batch needs as many sources as targets, at least one: {len(src_ids)}, {len(tgt_ids)}"
        )
    src, src_lengths = _rectangle_of(src_ids)
    tgt, tgt_lengths = _rectangle_of(tgt_ids)
    return batch_of(src, src_lengths, tgt, tgt_lengths)


def _rectangle_of(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(B, longest + 1) padded ids with a spare column, and the B lengths."""
    values, lengths = flatten(rows)
    starts = np.cumsum(lengths) - lengths
    return rectangle(values, starts, lengths, int(lengths.max()) + 1), lengths


def flatten(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """All ids in one int64 array, and the length of each row."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    values = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum()))
    return values, lengths

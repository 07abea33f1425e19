"""Padded batches from rows of ids: right padding, and the shift of the target.

Teacher forcing gives the decoder `<BOS> y1 .. yn` and trains it to predict `y1 .. yn <EOS>`. The shift happens
only here: model, loss and search use `tgt_in` and `tgt_out` unchanged. The source ends in <EOS> and has no <BOS>.
Every training batch is made here, so arrays are filled without a Python loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.special import BOS, EOS, PAD

# The ids of all rows in one array, and the rows' lengths.
Flat = tuple[np.ndarray, np.ndarray]


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

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """Move the tensors to `device`, through pinned memory if `non_blocking`."""
        pin = non_blocking and torch.device(device).type == "cuda"
        moved: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                moved[name] = (value.pin_memory() if pin else value).to(device, non_blocking=non_blocking)
        return replace(self, **moved)


def collate(
    src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]], tags: np.ndarray | None = None
) -> Batch:
    """Batch B rows of ids without special ids; `tags` (B, n) precede the sources."""
    return collate_flat(_flat(src_ids), _flat(tgt_ids), tags)


def collate_flat(src_ids: Flat, tgt_ids: Flat, tags: np.ndarray | None = None) -> Batch:
    """Batch rows concatenated in one array per side."""
    (src, src_lengths), (tgt, tgt_lengths) = _pad(*src_ids), _pad(*tgt_ids)
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


def _flat(rows: Sequence[Sequence[int]]) -> Flat:
    return np.fromiter(chain.from_iterable(rows), np.int64), np.array(list(map(len, rows)), np.int64)


def _pad(ids: np.ndarray, lengths: np.ndarray) -> Flat:
    """Return ids (B, longest + 1) padded on the right, and the lengths (B,)."""
    is_id = np.arange(lengths.max() + 1) < lengths[:, None]
    padded = np.full(is_id.shape, PAD, np.int64)
    padded[is_id] = ids
    return padded, lengths

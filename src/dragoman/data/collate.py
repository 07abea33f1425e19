"""Rows of ids in, one `Batch` of tensors out: right padding, and the one shift of the target.

Knows: the special ids, how rows of unequal length become rectangles, and that teacher forcing feeds the
decoder `<BOS> y1 .. yn` and asks it for `y1 .. yn <EOS>`. The shift happens here and nowhere else: the model,
the loss and the search take `tgt_in` and `tgt_out` as they are. And how pairs are packed into fewer rows (`pack`).
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
    """One batch: B rows, S source and T target positions, ids int64, padding on the right.

    A row is a sentence pair; or, packed, several: then `positions` count from 0 in each of them, and `segments` number
    them from 1 in each row, alike on both sides, 0 being padding. Where all stand in a single row, `starts` say where
    each begins, and the last one where the row ends; no sentence is longer than `longest`.
    Counts, and which targets are real, are found once, on the CPU, so that asking for them never waits for a GPU.
    """

    src: Tensor  # (B, S)  x1 .. xn <EOS>
    tgt_in: Tensor  # (B, T)  <BOS> y1 .. yn
    tgt_out: Tensor  # (B, T)  y1 .. yn <EOS>
    src_key_padding_mask: Tensor  # (B, S) bool, True = padding
    tgt_key_padding_mask: Tensor  # (B, T) bool, True = padding
    src_positions: Tensor | None = None  # (B, S) int64
    tgt_positions: Tensor | None = None  # (B, T) int64
    src_segments: Tensor | None = None  # (B, S) int64
    tgt_segments: Tensor | None = None  # (B, T) int64
    src_starts: Tensor | None = None  # (n_pairs + 1,) int32
    tgt_starts: Tensor | None = None  # (n_pairs + 1,) int32
    longest: int = 0
    n_pairs: int = field(init=False)
    places: Tensor = field(init=False)  # (n_tokens,) of the real targets in the flattened (B, T)
    n_tokens: int = field(init=False)  # target tokens to predict, <EOS> included
    padding_share: float = field(init=False)  # share of all positions, both sides, that are padding

    def __post_init__(self) -> None:
        src_padding, tgt_padding = int(self.src_key_padding_mask.sum()), int(self.tgt_key_padding_mask.sum())
        self.places = (~self.tgt_key_padding_mask).flatten().nonzero().squeeze(1)
        self.n_tokens = self.tgt_out.numel() - tgt_padding
        self.n_pairs = len(self.src) if self.src_segments is None else int(self.src_segments.amax(1).sum())
        self.padding_share = (src_padding + tgt_padding) / max(1, self.src.numel() + self.tgt_out.numel())

    def __len__(self) -> int:
        """The number of sentence pairs."""
        return self.n_pairs

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The same batch with its tensors on `device`. Towards a GPU, `non_blocking` keeps the CPU from waiting."""
        moved, through_pinned = copy.copy(self), non_blocking and torch.device(device).type == "cuda"
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                value = value.pin_memory() if through_pinned and not value.is_cuda else value
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


def pack(batch: Batch, rows: np.ndarray) -> Batch:
    """The same pairs in fewer rows: pair b behind the others of row `rows[b]`. Rows (B,) rise from 0 without a gap."""
    src, src_positions, src_segments, src_starts = _packed(batch.src_key_padding_mask, rows, batch.src)
    tgt, tgt_positions, tgt_segments, tgt_starts = _packed(
        batch.tgt_key_padding_mask, rows, batch.tgt_in, batch.tgt_out
    )
    longest = 1 + max(int(src_positions.max()), int(tgt_positions.max()))
    return Batch(
        src=src[0],
        tgt_in=tgt[0],
        tgt_out=tgt[1],
        src_key_padding_mask=src_segments == 0,
        tgt_key_padding_mask=tgt_segments == 0,
        src_positions=src_positions,
        tgt_positions=tgt_positions,
        src_segments=src_segments,
        tgt_segments=tgt_segments,
        src_starts=src_starts,
        tgt_starts=tgt_starts,
        longest=-(-longest // 128) * 128,  # few different numbers: a compiled step is made for each
    )


def _packed(
    padding: Tensor, rows: np.ndarray, *ids: Tensor
) -> tuple[list[Tensor], Tensor, Tensor, Tensor | None]:
    """Each of `ids`, positions, segments (rows, longest row), and where pairs begin in a single row."""
    real = ~padding.numpy()
    lengths = real.sum(axis=1)
    before = np.cumsum(lengths) - lengths  # tokens of the pairs before each pair
    first = np.searchsorted(rows, np.arange(rows[-1] + 1))  # the first pair of each row
    row_lengths = np.add.reduceat(lengths, first)
    places = (
        np.arange(row_lengths.max()) < row_lengths[:, None]
    )  # row by row: the order of the tokens in `ids`

    def filled(values: np.ndarray) -> Tensor:
        rectangle = np.full(places.shape, PAD, np.int64)  # zeros: no id, no position, no segment
        rectangle[places] = values
        return torch.from_numpy(rectangle)

    positions = np.arange(lengths.sum()) - np.repeat(before, lengths)
    segments = np.repeat(np.arange(len(rows)) - first[rows] + 1, lengths)
    starts = torch.from_numpy(np.append(before, lengths.sum()).astype(np.int32)) if len(first) == 1 else None
    return [filled(side.numpy()[real]) for side in ids], filled(positions), filled(segments), starts


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


def pairs_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The (source ids, target ids) that a batch was made of, without special ids, in its order."""
    sides = [
        _sentences(ids[~padding].tolist())
        for ids, padding in (
            (batch.src, batch.src_key_padding_mask),
            (batch.tgt_out, batch.tgt_key_padding_mask),
        )
    ]
    return list(zip(*sides, strict=True))


def _sentences(ids: list[int]) -> list[list[int]]:
    """Every sentence ends in <EOS>, however many stand in a row."""
    found: list[list[int]] = [[]]
    for i in ids:
        found[-1].append(i) if i != EOS else found.append([])
    return found[:-1]


def flatten(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """All ids in one int64 array, and the length of each row."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    values = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum()))
    return values, lengths

"""From a prepared corpus to an endless stream of batches that can be entered anywhere.

Knows: the plan of batches and how to gather one from the memory-mapped ids, or, with subword sampling, how to
cut its sentences anew; and that a pair, stored once, can be read in both directions. What batch number n holds
depends on the seed and n alone: not on the batches before it, not on how many workers there are, not on
whether the run was interrupted. How a sentence is cut depends on the seed, the epoch and its pair alone: not even
on its batch.
Refuses to know: Lightning, configuration files, how the corpus came to be.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from dragoman.data.batching import Planner
from dragoman.data.collate import Batch, batch_of, flatten, pack, rectangle
from dragoman.data.store import Ragged, Texts
from dragoman.data.tokenizer import Tokenizer

Ticket = tuple[int, np.ndarray]  # the epoch of a batch, and what Planner.epoch says of it


@dataclass(kw_only=True)
class Sampling:
    """What cutting sentences anew takes: the texts, row i of the ids being sentence `rows[i]`."""

    alpha: float
    max_length: int
    src_texts: Texts
    tgt_texts: Texts
    rows: np.ndarray
    src_tokenizer: Tokenizer
    tgt_tokenizer: Tokenizer


class _Side(NamedTuple):
    """One language of a batch: row b is `values[starts[b] : starts[b] + lengths[b]]`."""

    values: np.ndarray
    starts: np.ndarray  # (B,)
    lengths: np.ndarray  # (B,)


@dataclass(kw_only=True)
class Gather(Dataset[Batch]):
    """Rows of a prepared corpus as a `Batch`. Picklable: it holds names of files, not their content."""

    src: Ragged
    tgt: Ragged
    seed: int
    index: np.ndarray  # row number of the plan -> row of the corpus (corpora may be repeated)
    tags: np.ndarray  # (directions, 1 or 0) ids to put before the sources of each direction
    sampling: Sampling | None = None

    def __getitem__(self, ticket: Ticket) -> Batch:
        """The plan counts every pair once per direction: the whole index forwards, then perhaps backwards."""
        epoch, planned = ticket
        if planned.ndim == 2:
            return pack(self[epoch, planned[0]], planned[1])
        turn, place = np.divmod(planned, len(self.index))
        rows = self.index[place]
        sides = self._sampled(epoch, planned, rows) if self.sampling else self._stored(rows)
        src, src_lengths = _gather(sides, turn)
        tgt, tgt_lengths = _gather(sides[::-1], turn)
        tags = self.tags[turn]
        return batch_of(np.hstack([tags, src]), src_lengths + tags.shape[1], tgt, tgt_lengths)

    def _stored(self, rows: np.ndarray) -> tuple[_Side, _Side]:
        src, tgt = (
            _Side(ids.values, ids.offsets[rows], ids.offsets[rows + 1] - ids.offsets[rows])
            for ids in (self.src, self.tgt)
        )
        return src, tgt

    def _sampled(self, epoch: int, planned: np.ndarray, rows: np.ndarray) -> tuple[_Side, _Side]:
        """Longer than planned, since chance cuts finer: the budget of a batch is of its sentences cut plainly. A
        sentence that chance would cut into more than max_length pieces is cut plainly: tables of positions end."""
        s = self.sampling
        assert s is not None
        sentences, sides = s.rows[rows].tolist(), []
        for side, tokenizer, texts, plain in (
            ("src", s.src_tokenizer, s.src_texts, self.src),
            ("tgt", s.tgt_tokenizer, s.tgt_texts, self.tgt),
        ):
            cut = []
            for pair, sentence, row in zip(planned.tolist(), sentences, rows.tolist(), strict=True):
                seed = zlib.crc32(f"{self.seed} {epoch} {pair} {side}".encode())
                ids = tokenizer.sample(texts[sentence], alpha=s.alpha, seed=seed)
                cut.append(ids if len(ids) <= s.max_length else plain[row].tolist())
            sides.append(_cut(cut))
        return sides[0], sides[1]


def _cut(rows: list[list[int]]) -> _Side:
    values, lengths = flatten(rows)
    return _Side(values, np.cumsum(lengths) - lengths, lengths)


def _gather(sides: tuple[_Side, _Side], turn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B, longest + 1) padded ids, row b of `sides[turn[b]]`, and the B lengths."""
    lengths = np.where(turn, sides[1].lengths, sides[0].lengths)
    width = int(lengths.max()) + 1
    if not turn.any():  # as always for a model of one direction: nothing to put together
        return rectangle(sides[0].values, sides[0].starts, lengths, width), lengths
    padded = np.empty((len(turn), width), np.int64)
    for number, side in enumerate(sides):
        mine = turn == number
        padded[mine] = rectangle(side.values, side.starts[mine], side.lengths[mine], width)
    return padded, lengths


@dataclass(kw_only=True)
class BatchStream:
    """Epoch after epoch without end, beginning after as many batches as `consumed` says when iteration
    begins.

    Not a DataLoader, and without a length: Lightning takes it as it is and puts no sampler of its own in its
    place.
    """

    gather: Gather
    planner: Planner
    consumed: Callable[[], int]  # batches this rank has trained on
    workers: int = 0

    def __iter__(self) -> Iterator[Batch]:
        if not self.workers:
            return map(self.gather.__getitem__, self._tickets())
        return iter(
            DataLoader(
                self.gather,
                batch_size=None,  # a ticket is a whole batch
                sampler=_Tickets(self),
                num_workers=self.workers,
                generator=torch.Generator(),  # or it would draw from the one that dropout draws from
            )
        )

    def _tickets(self) -> Iterator[Ticket]:
        per_epoch = self.planner.batches_per_epoch
        epoch, position = divmod(self.consumed(), per_epoch)
        while True:
            batches = self.planner.epoch(epoch)
            for i in range(position, per_epoch):
                yield epoch, batches[i]
            epoch, position = epoch + 1, 0


class _Tickets:
    """The stream's tickets as a sampler, which a DataLoader wants to iterate over."""

    def __init__(self, stream: BatchStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Ticket]:
        return self._stream._tickets()

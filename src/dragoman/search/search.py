"""The one door to all searches, and what they have in common: the decoding loop of the study notes, for batches.

Begin with BOS, feed back what was chosen, until EOS or as long as a sentence may get. A sentence that is done leaves
its batch, so that the others do not pay for it. A step of few rows costs nearly as much as one of many, and the
last sentences of a batch may go on for long: so what is left of several batches goes on as one. No sentence looks at
another.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import torch

from dragoman.search.beam import Beams
from dragoman.search.greedy import Draws, Paths
from dragoman.search.hypothesis import Books, Cache, Found, Hypothesis, SearchConfig, Sentence, Step
from dragoman.special import BOS

__all__ = ["Hypothesis", "SearchConfig", "Sentence", "search"]

_FEW = 0.25  # of the rows that a batch began with


def search(
    step: Step, batches: Iterable[tuple[Sequence[Sentence], Cache]], config: SearchConfig, found: Found
) -> None:
    """Search each batch of sentences, whose cache has a row for each: `found` is told the answers as they come."""
    _run((_Batch(sentences, cache, config) for sentences, cache in batches), step, found)


def _run(batches: Iterator["_Batch"], step: Step, found: Found) -> None:
    """Each until few are left, and these together in the same way; at last there is one, which goes to its end."""
    thinned = _thinned(batches, step, found)
    first, second = next(thinned, None), next(thinned, None)
    if first is not None and second is not None:
        _run(_joined(chain((first, second), thinned)), step, found)
    elif first is not None:
        first.go_on(step, found, until=0)


def _thinned(batches: Iterator["_Batch"], step: Step, found: Found) -> Iterator["_Batch"]:
    for batch in batches:
        batch.go_on(step, found, until=int(_FEW * batch.room))
        if batch.n_rows:
            yield batch


def _joined(batches: Iterator["_Batch"]) -> Iterator["_Batch"]:
    for batch in batches:
        while batch.n_rows <= (1 - _FEW) * batch.room and (other := next(batches, None)) is not None:
            batch.join(other)
        yield batch


class _Batch:
    """Sentences that go on together: what the model remembers of them, what the search does, what comes next."""

    def __init__(self, sentences: Sequence[Sentence], cache: Cache, config: SearchConfig) -> None:
        self._cache, self._books = cache, _books(config, sentences)
        n_rows = self._books.n_rows
        if n_rows > 1:
            cache.select(torch.arange(len(sentences)).repeat_interleave(n_rows))
        self._tokens = torch.full((len(sentences) * n_rows, 1), BOS)
        self.room = self.n_rows

    @property
    def n_rows(self) -> int:
        return len(self._tokens)

    def go_on(self, step: Step, found: Found, *, until: int) -> None:
        """Step by step, until no more than so many rows are left."""
        while self.n_rows > until:
            self._tokens, rows, done = self._books.turn(step(self._tokens, self._cache))
            if rows is not None and len(rows):
                self._cache.select(rows)
            for number, hypotheses in done:
                found(number, hypotheses)

    def join(self, other: "_Batch") -> None:
        """The rows of `other` after those here."""
        self._books.join(other._books)
        self._cache.join(other._cache)
        self._tokens = torch.cat((self._tokens, other._tokens))
        self.room = min(self.room, other.room)


def _books(config: SearchConfig, sentences: Sequence[Sentence]) -> Books:
    if config.kind == "sample":
        return Draws(config, sentences)
    return (Paths if config.kind == "greedy" or config.beam_size == 1 else Beams)(config, sentences)

"""Beam search: the k likeliest prefixes side by side.

The rules are CTranslate2's, so that both engines find the same hypotheses. At each step the 2k best continuations of
a sentence's k beams are ranked. Of the first k, those that end (EOS, or the length cap) are put away, finished and
frozen; the best k that do not end go on. A sentence is done when k hypotheses were put away, at its length cap, or,
with length_penalty 0, when the leading beam has ended and n_best are in hand (nothing later could then score
higher). Done sentences leave the batch. A sentence never looks at its batch-mates.

The books are kept on the CPU: what a step adds to them (which beam went on, with which word, at what gain) is small,
and a hypothesis is read backwards from there when the sentence is done.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.search.hypothesis import Hypothesis, SearchConfig, Sentence, Turn, closed_up, normalised
from dragoman.search.warp import likeliest
from dragoman.special import EOS


class Beams:
    """k rows a sentence, and n_best of the hypotheses that were put away."""

    def __init__(self, config: SearchConfig, sentences: Sequence[Sentence]) -> None:
        self.n_rows, self._first = config.beam_size, True
        self._books = [_Book(config, sentence) for sentence in sentences]  # in the order of the rows
        self._totals = torch.full((len(sentences), self.n_rows), float("-inf"))  # (B, k)
        self._totals[:, 0] = 0.0  # all beams begin alike: only the first one counts

    def turn(self, logits: Tensor) -> Turn:
        k, books = self.n_rows, self._books
        best = likeliest(logits, min(2 * k, logits.size(-1)), first=self._first)
        self._first = False
        found = _candidates(*best, self._totals)
        is_done = [
            book.put_away(*candidates)
            for book, *candidates in zip(books, *(x[:, :k].tolist() for x in found), strict=True)
        ]
        ends = (found.words == EOS).to(torch.int8)
        going_on = ends.argsort(dim=1, stable=True)[:, :k]  # the best k that do not end
        beams = _Candidates(*(x.gather(1, going_on) for x in found))
        # of those there were, that each beam continues
        rows = beams.origin + torch.arange(len(books))[:, None] * k
        done = [book.answer() for book, ended in zip(books, is_done, strict=True) if ended]
        if done:
            staying = closed_up([at for at, ended in enumerate(is_done) if not ended])
            self._books = [books[at] for at in staying]
            beams, rows = _Candidates(*(x[staying] for x in beams)), rows[staying]
        for book, *step in zip(self._books, *(x.tolist() for x in beams[:3]), strict=True):
            book.steps.append(_Step(*step))
        self._totals = beams.totals
        return Turn(beams.words.reshape(-1, 1), rows.flatten(), done)

    def join(self, other: "Beams") -> None:
        self._books += other._books
        self._totals = torch.cat((self._totals, other._totals))


class _Candidates(NamedTuple):
    """Of each sentence, (B, n) each: the beam that is continued, the word, its log-probability, the new total."""

    origin: Tensor
    words: Tensor
    gains: Tensor
    totals: Tensor


def _candidates(words: Tensor, gains: Tensor, totals: Tensor) -> _Candidates:
    """The best 2k, best first. `words` (B * k, 2k) and their `gains` are each beam's best, `totals` (B, k) so far.

    The best 2k of a sentence are among the best 2k of each of its beams, so only those are compared.
    """
    n_sentences, k = totals.shape
    per_beam = words.size(1)
    summed = (gains.view(n_sentences, k, per_beam) + totals[..., None]).flatten(1)  # (B, k * per_beam)
    best, flat = summed.topk(2 * k, dim=-1)
    return _Candidates(
        flat // per_beam,
        words.view(n_sentences, -1).gather(1, flat),
        gains.view(n_sentences, -1).gather(1, flat),
        best,
    )


class _Step(NamedTuple):
    """What one step did to the k beams of a sentence: which one each goes on from, with which word, at what gain."""

    origin: list[int]
    words: list[int]
    gains: list[float]


class _Book:
    """What is written down about one sentence: all steps, and the hypotheses that were put away."""

    def __init__(self, config: SearchConfig, sentence: Sentence) -> None:
        self.steps: list[_Step] = []
        self._config, self._sentence = config, sentence
        self._finished: list[Hypothesis] = []
        self._enough = config.n_best if config.length_penalty == 0 else config.beam_size
        self._leader_ended = False

    def put_away(self, origin: list[int], words: list[int], gains: list[float], totals: list[float]) -> bool:
        """Put away those of the first k candidates that end; whether the sentence is done."""
        last = len(self.steps) + 1 >= self._sentence.max_length
        for rank, (word, total) in enumerate(zip(words, totals, strict=True)):
            if total != float("-inf") and (last or word == EOS):
                self._leader_ended |= rank == 0
                self._finished.append(self._hypothesis(origin[rank], word, gains[rank], total))
        enough = len(self._finished) >= self._enough
        return last or (enough and (self._config.length_penalty != 0 or self._leader_ended))

    def answer(self) -> tuple[int, list[Hypothesis]]:
        """The sentence's number, and its n_best hypotheses."""
        best = sorted(self._finished, key=lambda h: -h.score)
        return self._sentence.number, best[: self._config.n_best]

    def _hypothesis(self, beam: int, word: int, gain: float, total: float) -> Hypothesis:
        """The one that ends with `word` after `beam`, read backwards."""
        ids, gains = [word], [gain]
        for step in reversed(self.steps):
            ids.append(step.words[beam])
            gains.append(step.gains[beam])
            beam = step.origin[beam]
        ids, gains = ids[::-1], gains[::-1]
        score = normalised(total, len(gains), self._config.length_penalty)
        if ids[-1] == EOS:
            ids.pop()
        return Hypothesis(ids, score, gains)

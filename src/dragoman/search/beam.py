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

from dragoman.search.hypothesis import Cache, Hypothesis, SearchConfig, Step, closed_up, normalised
from dragoman.search.warp import likeliest
from dragoman.special import BOS, EOS


def beam_search(
    step: Step, cache: Cache, config: SearchConfig, *, max_lengths: Sequence[int]
) -> list[list[Hypothesis]]:
    """Search len(max_lengths) sentences at once -> n_best hypotheses each, best first."""
    k = config.beam_size
    books = [_Book(config, max_length) for max_length in max_lengths]
    sentences = books  # those still in the batch, in the order of its rows
    cache = cache.select(torch.arange(len(books)).repeat_interleave(k))
    tokens = torch.full((len(books) * k, 1), BOS)
    totals = torch.full((len(books), k), float("-inf"))  # (B, k)
    totals[:, 0] = 0.0  # all beams begin alike: only the first one counts
    first = True

    while sentences:
        logits, cache = step(tokens, cache)
        found = _candidates(*likeliest(logits, min(2 * k, logits.size(-1)), first=first), totals)
        first = False
        done = [
            book.put_away(*candidates)
            for book, *candidates in zip(sentences, *(x[:, :k].tolist() for x in found), strict=True)
        ]
        ends = (found.words == EOS).to(torch.int8)
        going_on = ends.argsort(dim=1, stable=True)[:, :k]  # the best k that do not end
        beams = _Candidates(*(x.gather(1, going_on) for x in found))
        # of the cache, that each beam continues
        rows = beams.origin + torch.arange(len(sentences))[:, None] * k
        if any(done):
            staying = closed_up([at for at, is_done in enumerate(done) if not is_done])
            sentences = [sentences[at] for at in staying]
            beams, rows = _Candidates(*(x[staying] for x in beams)), rows[staying]
        for book, *turn in zip(sentences, *(x.tolist() for x in beams[:3]), strict=True):
            book.turns.append(_Turn(*turn))
        totals, tokens = beams.totals, beams.words.reshape(-1, 1)
        if sentences:
            cache = cache.select(rows.flatten())
    return [sorted(book.finished, key=lambda h: -h.score)[: config.n_best] for book in books]


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


class _Turn(NamedTuple):
    """What one step did to the k beams of a sentence: which one each goes on from, with which word, at what gain."""

    origin: list[int]
    words: list[int]
    gains: list[float]


class _Book:
    """What is written down about one sentence: all turns, and the hypotheses that were put away."""

    def __init__(self, config: SearchConfig, max_length: int) -> None:
        self.finished: list[Hypothesis] = []
        self.turns: list[_Turn] = []
        self._length_penalty, self._max_length = config.length_penalty, max_length
        self._enough = config.n_best if config.length_penalty == 0 else config.beam_size
        self._leader_ended = False

    def put_away(self, origin: list[int], words: list[int], gains: list[float], totals: list[float]) -> bool:
        """Put away those of the first k candidates that end; whether the sentence is done."""
        last = len(self.turns) + 1 >= self._max_length
        for rank, (word, total) in enumerate(zip(words, totals, strict=True)):
            if total != float("-inf") and (last or word == EOS):
                self._leader_ended |= rank == 0
                self.finished.append(self._hypothesis(origin[rank], word, gains[rank], total))
        enough = len(self.finished) >= self._enough
        return last or (enough and (self._length_penalty != 0 or self._leader_ended))

    def _hypothesis(self, beam: int, word: int, gain: float, total: float) -> Hypothesis:
        """The one that ends with `word` after `beam`, read backwards."""
        ids, gains = [word], [gain]
        for turn in reversed(self.turns):
            ids.append(turn.words[beam])
            gains.append(turn.gains[beam])
            beam = turn.origin[beam]
        ids, gains = ids[::-1], gains[::-1]
        score = normalised(total, len(gains), self._length_penalty)
        if ids[-1] == EOS:
            ids.pop()
        return Hypothesis(ids, score, gains)

"""One path: the likeliest next word, or a drawn one.

The choice is made where the logits are; words and their scores come back.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dragoman.search.hypothesis import Hypothesis, SearchConfig, Sentence, Turn, closed_up, normalised
from dragoman.search.warp import drawn, likeliest, log_probabilities, n_halvings, sharpened, together_to_cpu
from dragoman.special import EOS


class Paths:
    """The likeliest word at each step; one hypothesis a sentence."""

    n_rows = 1

    def __init__(self, config: SearchConfig, sentences: Sequence[Sentence]) -> None:
        self._config, self._first = config, True
        self._rows = [_Path(sentence, n) for sentence in sentences for n in range(self.n_rows)]
        self._ended: dict[int, list[Hypothesis]] = {}  # of sentences that have rows left

    def turn(self, logits: Tensor) -> Turn:
        tokens, gains = self._choose(logits)  # (N, 1) both
        self._first = False
        going_on, done = [], []
        for at, (token, gain) in enumerate(zip(tokens[:, 0].tolist(), gains[:, 0].tolist(), strict=True)):
            path = self._rows[at]
            if path.goes_on(token, gain):
                going_on.append(at)
            elif (answer := self._put_away(path)) is not None:
                done.append((path.sentence.number, answer))
        if len(going_on) == len(self._rows):
            return Turn(tokens, None, done)
        going_on = closed_up(going_on)
        self._rows = [self._rows[at] for at in going_on]
        rows = torch.tensor(going_on, dtype=torch.long)
        return Turn(tokens[rows], rows, done)

    def join(self, other: "Paths") -> None:
        self._rows += other._rows
        self._ended |= other._ended

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """A word for each row, and its log-probability."""
        return likeliest(logits, 1, first=self._first)

    def _put_away(self, path: "_Path") -> list[Hypothesis] | None:
        """The answer, best first, if this was the last path of its sentence."""
        found = self._ended.setdefault(path.sentence.number, [])
        found.append(path.hypothesis(self._config.length_penalty))
        if len(found) < self.n_rows:
            return None
        return sorted(self._ended.pop(path.sentence.number), key=lambda h: (-h.score, h.ids))


class Draws(Paths):
    """n_best draws a sentence; scores are the model's own, not the sharpened ones."""

    def __init__(self, config: SearchConfig, sentences: Sequence[Sentence]) -> None:
        self.n_rows = config.n_best
        super().__init__(config, sentences)

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        config = self._config
        log_p = log_probabilities(logits, first=self._first)
        p = sharpened(log_p, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p).exp()
        chances = np.stack([row.chances(n_halvings(p.size(-1)), config.seed) for row in self._rows])
        words = drawn(p, torch.from_numpy(chances).float().to(p.device))
        return together_to_cpu(words, log_p.gather(1, words))


class _Path:
    """What has been said so far, in a sentence's nth draw."""

    def __init__(self, sentence: Sentence, n: int) -> None:
        self.sentence, self._n = sentence, n
        self._ids: list[int] = []
        self._gains: list[float] = []
        self._stream: np.random.Generator | None = None

    def goes_on(self, token: int, gain: float) -> bool:
        self._gains.append(gain)
        if token == EOS:
            return False
        self._ids.append(token)
        return len(self._ids) < self.sentence.max_length

    def hypothesis(self, length_penalty: float) -> Hypothesis:
        score = normalised(sum(self._gains), len(self._gains), length_penalty)
        return Hypothesis(self._ids, score, self._gains)

    def chances(self, n: int, seed: int) -> np.ndarray:
        """n numbers in (0, 1] from its own stream, whatever its batch-mates are."""
        if self._stream is None:
            self._stream = np.random.default_rng([seed, self.sentence.line, self._n])
        return 1.0 - self._stream.random(n)

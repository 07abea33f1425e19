"""Greedy search and sampling: one path per row."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dragoman.config import SearchConfig
from dragoman.search.hypothesis import Hypothesis, Sentence, normalised
from dragoman.search.warp import log_probabilities, warped
from dragoman.special import BOS, EOS

LEAVE_TOGETHER = 1 / 8  # of the batch


def plain_greedy(next_logits: Callable[[Tensor], Tensor], max_length: int) -> list[int]:
    """Greedy search of one sentence without a cache, the reference for `search`.

    next_logits maps the whole prefix (1, T), which begins with <BOS>, to the logits (1, V) of the next token.
    With a model: `lambda tgt: model.projection(model.decode(tgt, memory, None)[:, -1])`.
    """
    prefix = [BOS]
    while len(prefix) <= max_length and prefix[-1] != EOS:
        log_probs = log_probabilities(next_logits(torch.tensor([prefix])), first=len(prefix) == 1)
        prefix.append(int(log_probs.argmax()))
    return [token for token in prefix[1:] if token != EOS]


class Path:
    """Output of one row so far; `number` is its number among those of the sentence."""

    def __init__(self, sentence: Sentence, number: int) -> None:
        self.sentence, self.number = sentence, number
        self.ids: list[int] = []
        self.token_scores: list[float] = []
        self.finished = False

    def append(self, token: int, log_prob: float) -> None:
        """Add a token, until <EOS> or the maximum length."""
        if self.finished:
            return
        self.token_scores.append(log_prob)
        if token != EOS:
            self.ids.append(token)
        self.finished = token == EOS or len(self.ids) == self.sentence.max_length

    def hypothesis(self, length_penalty: float) -> Hypothesis:
        score = normalised(sum(self.token_scores), len(self.token_scores), length_penalty)
        return Hypothesis(self.ids, score, self.token_scores)


class Greedy:
    """The most probable piece at each step; one hypothesis per sentence."""

    @staticmethod
    def width(config: SearchConfig) -> int:
        """Return the number of rows of a sentence."""
        return 1

    def __init__(self, config: SearchConfig, sentences: Sequence[Sentence]) -> None:
        self.config, self.k = config, self.width(config)
        self.paths = [[Path(sentence, n) for n in range(self.k)] for sentence in sentences]
        self.unfinished = self.paths  # of the sentences still in the batch
        self.first = True

    def advance(self, logits: Tensor) -> tuple[Tensor | None, Tensor]:
        """logits (N, V) -> rows (n,) that continue, None = all; next tokens (n, 1)."""
        log_probs = log_probabilities(logits, first=self.first)
        tokens = self.choose(log_probs)  # (N, 1)
        token_log_probs = log_probs.gather(1, tokens)
        rows = [path for paths in self.unfinished for path in paths]
        for path, token, log_prob in zip(rows, tokens.tolist(), token_log_probs.tolist(), strict=True):
            path.append(*token, *log_prob)
        self.first = False
        # Sentences of which all paths are finished leave the batch, several at once, because that copies the cache.
        stays = [not all(path.finished for path in paths) for paths in self.unfinished]
        if any(stays) and stays.count(False) < len(stays) * LEAVE_TOGETHER:
            return None, tokens
        self.unfinished = [paths for paths, stay in zip(self.unfinished, stays, strict=True) if stay]
        going_on = torch.tensor(stays).repeat_interleave(self.k).nonzero()[:, 0].to(tokens.device)
        return going_on, tokens[going_on]

    def choose(self, log_probs: Tensor) -> Tensor:
        """log_probs (N, V) -> the next token of each row (N, 1)."""
        return log_probs.argmax(dim=-1, keepdim=True)

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, best first."""
        results = [[path.hypothesis(self.config.length_penalty) for path in paths] for paths in self.paths]
        return [sorted(hypotheses, key=lambda h: (-h.score, h.ids)) for hypotheses in results]


class Sample(Greedy):
    """n_best random samples of the warped distribution, scored without warping.

    Each sample has its own random generator, so that the other sentences of a batch cannot change it.
    """

    @staticmethod
    def width(config: SearchConfig) -> int:
        return config.n_best

    def __init__(self, config: SearchConfig, sentences: Sequence[Sentence]) -> None:
        super().__init__(config, sentences)
        self.generators: dict[Path, torch.Generator] = {}

    def choose(self, log_probs: Tensor) -> Tensor:
        config, tokens = self.config, []
        probs = warped(log_probs, config.temperature, config.top_k, config.top_p).exp()
        for path, row in zip((path for paths in self.unfinished for path in paths), probs, strict=True):
            if path not in self.generators:
                seed = np.random.SeedSequence([config.seed, path.sentence.line, path.number]).generate_state(1)
                self.generators[path] = torch.Generator(row.device).manual_seed(int(seed[0]))
            tokens.append(torch.multinomial(row, 1, generator=self.generators[path]))
        return torch.stack(tokens)

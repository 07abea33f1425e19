"""Search by a `step` function, independent of models and text.

    step(tokens (N, 1), cache) -> logits (N, V)

A step adds the tokens to the cache; `cache.select(rows)` keeps these rows, in this order. N = B * k: the k rows of a
sentence, its beams or samples, are consecutive. Finished sentences leave the batch, and no sentence influences another.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.config import SearchConfig
from dragoman.search import Hypothesis, Sentence
from dragoman.special import BOS, EOS, PAD, UNK

NEVER = (PAD, UNK, BOS)  # in no translation
MIN_FINISHED = 1 / 8  # greedy, sample: finished sentences leave when they are this share of the batch
Step = Callable[[Tensor, Any], Tensor]  # (tokens (N, 1), cache) -> logits (N, V) of the next tokens


def log_probabilities(logits: Tensor, *, first: bool) -> Tensor:
    """fp32 log-softmax (N, V) over the permitted tokens; the others are -inf.

    <EOS> is not permitted as the first token, so that no translation is empty.
    """
    allowed = logits.to(torch.float32, copy=True)
    allowed[:, : EOS + 1 if first else EOS] = float("-inf")  # NEVER and, as the first token, <EOS>
    return allowed.log_softmax(dim=-1)


def normalised(total: float, length: int, length_penalty: float) -> float:
    """Return total / length^length_penalty; as in CTranslate2, <EOS> counts."""
    return total / length**length_penalty


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


def search(step: Step, cache: Any, sentences: Sequence[Sentence], config: SearchConfig) -> list[list[Hypothesis]]:
    """Return the hypotheses of the sentences of one batch; `cache` has no tokens yet."""
    kind = SEARCHES[config.kind]
    state = kind(config, sentences)
    tokens = torch.full((len(sentences) * kind.width(config), 1), BOS)
    while len(tokens):
        rows, tokens = state.advance(step(tokens, cache))
        if rows is not None:
            cache.select(rows)
    return state.hypotheses()


class Path:
    """Output of one row so far; `number` is its index among the rows of its sentence."""

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
    """The most probable token at each step; one hypothesis per sentence."""

    @staticmethod
    def width(config: SearchConfig) -> int:
        """Return the number of rows of a sentence."""
        return 1

    def __init__(self, config: SearchConfig, sentences: Sequence[Sentence]) -> None:
        self.config, self.k = config, self.width(config)
        self.paths = [[Path(sentence, n) for n in range(self.k)] for sentence in sentences]
        self.in_batch = self.paths  # of the sentences still in the batch
        self.first = True

    def advance(self, logits: Tensor) -> tuple[Tensor | None, Tensor]:
        """logits (N, V) -> rows (n,) that continue, None = all; next tokens (n, 1)."""
        log_probs = log_probabilities(logits, first=self.first)
        tokens = self.pick(log_probs)  # (N, 1)
        token_log_probs = log_probs.gather(1, tokens)[:, 0].tolist()
        rows = [path for paths in self.in_batch for path in paths]
        for path, token, log_prob in zip(rows, tokens[:, 0].tolist(), token_log_probs, strict=True):
            path.append(token, log_prob)
        self.first = False
        # Finished sentences leave the batch several at a time, because each removal copies the cache.
        stays = [not all(path.finished for path in paths) for paths in self.in_batch]
        if any(stays) and stays.count(False) < len(stays) * MIN_FINISHED:
            return None, tokens
        self.in_batch = [paths for paths, stay in zip(self.in_batch, stays, strict=True) if stay]
        remaining = torch.tensor(stays).repeat_interleave(self.k).nonzero()[:, 0].to(tokens.device)
        return remaining, tokens[remaining]

    def pick(self, log_probs: Tensor) -> Tensor:
        """log_probs (N, V) -> the next token of each row (N, 1)."""
        if log_probs.device.type == "cpu":
            # NumPy's argmax is vectorised, torch's on a CPU is not.
            return torch.from_numpy(log_probs.detach().numpy().argmax(-1))[:, None]
        return log_probs.argmax(dim=-1, keepdim=True)

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, best first."""
        results = [[path.hypothesis(self.config.length_penalty) for path in paths] for paths in self.paths]
        return [sorted(hypotheses, key=lambda h: (-h.score, h.ids)) for hypotheses in results]


class Sample(Greedy):
    """n_best random samples of the warped distribution, scored without warping.

    Each draw has a seed of its own (search.seed, sentence, sample, step): the rest of the batch cannot change it.
    """

    @staticmethod
    def width(config: SearchConfig) -> int:
        return config.n_best

    def pick(self, log_probs: Tensor) -> Tensor:
        config, tokens, generator = self.config, [], torch.Generator(log_probs.device)
        probs = warped(log_probs, config.temperature, config.top_k, config.top_p).exp()
        for path, row in zip((path for paths in self.in_batch for path in paths), probs, strict=True):
            draw = [config.seed, path.sentence.number, path.number, len(path.ids)]
            generator.manual_seed(int(np.random.SeedSequence(draw).generate_state(1)[0]))
            tokens.append(torch.multinomial(row, 1, generator=generator))
        return torch.stack(tokens)


def warped(log_probs: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Divide by the temperature, keep top_k and top_p, and renormalise.

    top_k = 0 keeps all. top_p is nucleus sampling (Holtzman et al. 2020); the most probable token always stays.
    """
    log_probs = log_probs / temperature
    if 0 < top_k < log_probs.size(-1):
        threshold = log_probs.topk(top_k, dim=-1).values[:, -1:]
        log_probs = log_probs.masked_fill(log_probs < threshold, float("-inf"))
    if top_p < 1.0:
        ordered, order = log_probs.softmax(dim=-1).sort(dim=-1, descending=True)
        mass_before = ordered.cumsum(dim=-1) - ordered
        outside = torch.zeros_like(log_probs, dtype=torch.bool).scatter_(-1, order, mass_before >= top_p)
        log_probs = log_probs.masked_fill(outside, float("-inf"))
    return log_probs.log_softmax(dim=-1)


class Beam:
    """Beam search as in CTranslate2, except for hypotheses cut at the maximum length.

    Each step ranks the 2k best continuations of the k beams of a sentence. Those among the first k that end (<EOS>, or
    the maximum length) become finished hypotheses; the best k that do not end become the next beams. A sentence is done
    when k hypotheses are finished, or at its maximum length. With length_penalty 0 it is done when n_best hypotheses
    are finished and one of them was ranked first when it ended: scores only fall, so no other can become better.

    The state: prefixes and token log-probs (B, k, t each), and cumulative log-probs (B, k).
    """

    @staticmethod
    def width(config: SearchConfig) -> int:
        return config.beam_size

    def __init__(self, config: SearchConfig, sentences: Sequence[Sentence]) -> None:
        n, k = len(sentences), config.beam_size
        self.config, self.k = config, k
        self.finished: list[list[Hypothesis]] = [[] for _ in sentences]
        self.best_ended = [False] * n  # whether the first candidate of any step ended
        self.sentences = torch.arange(n)  # (B,): those in the batch
        self.max_length = torch.tensor([sentence.max_length for sentence in sentences])
        self.prefixes = torch.empty(n, k, 0, dtype=torch.long)
        self.log_probs = torch.empty(n, k, 0)
        self.cumulative = torch.full((n, k), float("-inf"))
        # All beams begin alike, so only the first one counts.
        self.cumulative[:, 0] = 0.0

    def advance(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """logits (N, V) -> the rows (n,) that continue, and their next tokens (n, 1)."""
        k, length = self.k, self.prefixes.size(2) + 1
        backpointers = self._extend(logits)  # now there are 2k candidates
        last = self.max_length[self.sentences, None] <= length
        ends = (self.prefixes[:, :, -1] == EOS) | last  # (B, 2k)
        for i, rank in (ends[:, :k] & self.cumulative[:, :k].isfinite()).nonzero().tolist():
            self._finish(i, rank)
        # The best k that do not end (False sorts before True): each beam has at most one <EOS>, so k remain.
        beams = ends.int().argsort(dim=1, stable=True)[:, :k]
        done = torch.tensor([self._is_done(s) for s in self.sentences.tolist()]) | last[:, 0]
        left = (~done).nonzero()  # (b, 1)
        chosen = left, beams[left[:, 0]]  # indices of the next beams (b, k)
        rows = (left * k + backpointers[chosen]).flatten()  # of the cache: sentence * k + old beam
        self.sentences = self.sentences[left[:, 0]]
        self.prefixes, self.log_probs = self.prefixes[chosen], self.log_probs[chosen]
        self.cumulative = self.cumulative[chosen]
        return rows.to(logits.device), self.prefixes[:, :, -1].reshape(-1, 1).to(logits.device)

    def _extend(self, logits: Tensor) -> Tensor:
        """Replace the k beams by the 2k best continuations; return backpointers (B, 2k).

        The 2k best of a sentence are among the 2k best of each of its beams, so only those are compared.
        """
        n, width = len(self.sentences), min(2 * self.k, logits.size(-1))
        best = log_probabilities(logits, first=self.prefixes.size(2) == 0).topk(width, dim=-1)
        log_probs, tokens = (x.cpu().view(n, self.k * width) for x in best)
        cumulative = (log_probs.view(n, self.k, width) + self.cumulative[:, :, None]).flatten(1)
        self.cumulative, order = cumulative.topk(2 * self.k, dim=-1)  # (B, 2k)
        backpointers = order // width
        every = torch.arange(n)[:, None]
        self.prefixes = torch.cat((self.prefixes[every, backpointers], tokens[every, order, None]), dim=2)
        self.log_probs = torch.cat((self.log_probs[every, backpointers], log_probs[every, order, None]), dim=2)
        return backpointers

    def _finish(self, i: int, rank: int) -> None:
        """Add candidate `rank` of the i-th sentence of the batch to its hypotheses."""
        ids, log_probs = self.prefixes[i, rank].tolist(), self.log_probs[i, rank].tolist()
        score = normalised(float(self.cumulative[i, rank]), len(ids), self.config.length_penalty)
        sentence = int(self.sentences[i])
        self.finished[sentence].append(Hypothesis(ids[:-1] if ids[-1] == EOS else ids, score, log_probs))
        self.best_ended[sentence] |= rank == 0

    def _is_done(self, sentence: int) -> bool:
        n_finished = len(self.finished[sentence])
        if self.config.length_penalty == 0:
            return n_finished >= self.config.n_best and self.best_ended[sentence]
        return n_finished >= self.k

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the n_best hypotheses of each sentence, best first."""
        return [sorted(finished, key=lambda h: -h.score)[: self.config.n_best] for finished in self.finished]


SEARCHES: dict[str, type[Greedy | Beam]] = {"greedy": Greedy, "beam": Beam, "sample": Sample}

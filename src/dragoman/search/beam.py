"""Beam search.

The rules are CTranslate2's, so that both engines find the same hypotheses. Each step ranks the 2k best continuations
of the k beams of a sentence. Those among the first k that end (<EOS>, or the maximum length) become finished
hypotheses; the best k that do not end become the next beams. A sentence is done when k hypotheses are finished, or at
its maximum length. With length_penalty 0 it is done when n_best hypotheses are finished and the first candidate was
among them, because no later one can score higher.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.config import SearchConfig
from dragoman.search.hypothesis import Hypothesis, Sentence, normalised
from dragoman.search.warp import log_probabilities
from dragoman.special import EOS


class Beam:
    """Prefixes, token log-probs (B, k, t each), and cumulative log-probs (B, k)."""

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
        # The best k candidates of each sentence that do not end.
        beams = ends.int().argsort(dim=1, stable=True)[:, :k]
        done = torch.tensor([self._is_done(s) for s in self.sentences.tolist()]) | last[:, 0]
        going_on = (~done).nonzero()  # (b, 1)
        beams = beams[going_on[:, 0]]  # (b, k)
        rows = (going_on * k + backpointers[going_on, beams]).flatten()
        self.sentences = self.sentences[going_on[:, 0]]
        self.prefixes, self.log_probs = self.prefixes[going_on, beams], self.log_probs[going_on, beams]
        self.cumulative = self.cumulative[going_on, beams]
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

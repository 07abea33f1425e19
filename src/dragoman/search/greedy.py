"""One path: the likeliest next word, or a drawn one. The decoding loop of the study notes, for a whole batch.

Begin with BOS, feed back what was produced, stop a sentence at EOS or at its length; a finished sentence leaves the
batch, so the others do not pay for it.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dragoman.search.hypothesis import Cache, Hypothesis, SearchConfig, Step, normalised
from dragoman.search.warp import log_probabilities, sharpened
from dragoman.special import BOS, EOS


def greedy_search(
    step: Step, cache: Cache, config: SearchConfig, *, max_lengths: Sequence[int]
) -> list[list[Hypothesis]]:
    """The likeliest word at each step; one hypothesis a sentence."""

    def likeliest(log_p: Tensor, rows: list[int]) -> Tensor:
        return log_p.argmax(dim=-1)

    return [[h] for h in _walk(step, cache, likeliest, max_lengths, config.length_penalty)]


def sample_search(
    step: Step, cache: Cache, config: SearchConfig, *, max_lengths: Sequence[int], lines: Sequence[int]
) -> list[list[Hypothesis]]:
    """n_best draws a sentence, best first; scores are the model's own, not the sharpened ones."""
    n = config.n_best
    streams = [np.random.default_rng([config.seed, line, draw]) for line in lines for draw in range(n)]

    def drawn(log_p: Tensor, rows: list[int]) -> Tensor:
        p = sharpened(log_p, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p).exp()
        cumulative = p.double().cumsum(dim=-1)
        at = torch.tensor([streams[row].random() for row in rows], dtype=torch.float64, device=p.device)
        at = at[:, None] * cumulative[:, -1:]
        return torch.searchsorted(cumulative, at, right=True)[:, 0].clamp_(max=p.size(-1) - 1)

    if n > 1:
        cache = cache.select(torch.arange(len(lines)).repeat_interleave(n))
    walked = _walk(step, cache, drawn, [m for m in max_lengths for _ in range(n)], config.length_penalty)
    return [
        sorted(walked[i : i + n], key=lambda hypothesis: -hypothesis.score) for i in range(0, len(walked), n)
    ]


def _walk(
    step: Step,
    cache: Cache,
    choose: Callable[[Tensor, list[int]], Tensor],
    max_lengths: Sequence[int],
    length_penalty: float,
) -> list[Hypothesis]:
    found = [Hypothesis([], 0.0, []) for _ in max_lengths]
    rows = list(range(len(found)))  # which sentence each row of the shrinking batch is
    tokens = torch.full((len(rows), 1), BOS)
    first = True
    while rows:
        logits, cache = step(tokens, cache)
        log_p, first = log_probabilities(logits, first=first), False
        chosen = choose(log_p, rows)  # (N,)
        gained = log_p.gather(1, chosen[:, None])[:, 0]
        going_on = []
        for at, (token, gain) in enumerate(torch.stack((chosen.double(), gained.double())).T.tolist()):
            hypothesis = found[rows[at]]
            hypothesis.token_scores.append(gain)
            if token != EOS:
                hypothesis.ids.append(int(token))
                if len(hypothesis.ids) < max_lengths[rows[at]]:
                    going_on.append(at)
        tokens = chosen[:, None]
        if len(going_on) < len(rows):
            rows = [rows[at] for at in going_on]
            keep = torch.tensor(going_on, dtype=torch.long, device=chosen.device)
            tokens, cache = tokens.index_select(0, keep), cache.select(keep)
    for hypothesis in found:
        hypothesis.score = normalised(
            sum(hypothesis.token_scores), len(hypothesis.token_scores), length_penalty
        )
    return found

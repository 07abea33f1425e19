"""One path: the likeliest next word, or a drawn one. The decoding loop of the study notes, for a whole batch.

Begin with BOS, feed back what was produced, stop a sentence at EOS or at its length; a finished sentence leaves the
batch, so the others do not pay for it. The choice is made where the logits are; words and their scores come back.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dragoman.search.hypothesis import Cache, Hypothesis, SearchConfig, Step, closed_up, normalised
from dragoman.search.warp import likeliest, log_probabilities, sharpened, together_to_cpu
from dragoman.special import BOS, EOS


def greedy_search(
    step: Step, cache: Cache, config: SearchConfig, *, max_lengths: Sequence[int]
) -> list[list[Hypothesis]]:
    """The likeliest word at each step; one hypothesis a sentence."""

    def choose(logits: Tensor, rows: list[int], first: bool) -> tuple[Tensor, Tensor]:
        return likeliest(logits, 1, first=first)

    return [[h] for h in _walk(step, cache, choose, max_lengths, config.length_penalty)]


def sample_search(
    step: Step, cache: Cache, config: SearchConfig, *, max_lengths: Sequence[int], lines: Sequence[int]
) -> list[list[Hypothesis]]:
    """n_best draws a sentence, best first; scores are the model's own, not the sharpened ones."""
    n = config.n_best
    streams = [np.random.default_rng([config.seed, line, draw]) for line in lines for draw in range(n)]

    def draw(logits: Tensor, rows: list[int], first: bool) -> tuple[Tensor, Tensor]:
        log_p = log_probabilities(logits, first=first)
        p = sharpened(log_p, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p).exp()
        wide = torch.float32 if p.device.type == "mps" else torch.float64  # which it has not
        cumulative = p.to(wide).cumsum(dim=-1)
        at = torch.tensor([streams[row].random() for row in rows], dtype=wide).to(p.device)
        at = at[:, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, at, right=True).clamp_(max=p.size(-1) - 1)
        return together_to_cpu(drawn, log_p.gather(1, drawn))

    if n > 1:
        cache = cache.select(torch.arange(len(lines)).repeat_interleave(n))
    walked = _walk(step, cache, draw, [m for m in max_lengths for _ in range(n)], config.length_penalty)
    return [
        sorted(walked[i : i + n], key=lambda hypothesis: -hypothesis.score) for i in range(0, len(walked), n)
    ]


def _walk(
    step: Step,
    cache: Cache,
    choose: Callable[[Tensor, list[int], bool], tuple[Tensor, Tensor]],
    max_lengths: Sequence[int],
    length_penalty: float,
) -> list[Hypothesis]:
    """`choose` takes logits (N, V), the sentence of each row, and whether it is the first step; gives (N, 1) both."""
    found = [Hypothesis([], 0.0, []) for _ in max_lengths]
    rows = list(range(len(found)))  # which sentence each row of the shrinking batch is
    tokens = torch.full((len(rows), 1), BOS)
    first = True
    while rows:
        logits, cache = step(tokens, cache)
        tokens, gains = choose(logits, rows, first)  # (N, 1)
        first = False
        going_on = []
        for at, (token, gain) in enumerate(zip(tokens[:, 0].tolist(), gains[:, 0].tolist(), strict=True)):
            hypothesis = found[rows[at]]
            hypothesis.token_scores.append(gain)
            if token != EOS:
                hypothesis.ids.append(token)
                if len(hypothesis.ids) < max_lengths[rows[at]]:
                    going_on.append(at)
        if len(going_on) < len(rows):
            going_on = closed_up(going_on)
            rows = [rows[at] for at in going_on]
            if rows:
                keep = torch.tensor(going_on)
                tokens, cache = tokens.index_select(0, keep), cache.select(keep)
    for hypothesis in found:
        hypothesis.score = normalised(
            sum(hypothesis.token_scores), len(hypothesis.token_scores), length_penalty
        )
    return found

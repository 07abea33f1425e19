"""What may be produced, and how sharply: logits (N, V) in, log-probabilities (N, V) out."""

import torch
from torch import Tensor

from dragoman.special import BOS, EOS, PAD, UNK

NEVER = (PAD, UNK, BOS)  # no translation contains these


def log_probabilities(logits: Tensor, *, first: bool) -> Tensor:
    """fp32 log-softmax over what may be produced; the rest is -inf.

    The first piece cannot be EOS: no sentence translates to nothing.
    """
    logits = logits.float()
    logits[:, [*NEVER, EOS] if first else list(NEVER)] = float("-inf")
    return logits.log_softmax(dim=-1)


def sharpened(log_p: Tensor, *, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Divide by the temperature, keep the k likeliest (0 = all), keep the smallest set of mass top_p; renormalise.

    top_p is nucleus sampling (Holtzman et al. 2020); the likeliest word always stays.
    """
    log_p = log_p / temperature
    if 0 < top_k < log_p.size(-1):
        threshold = log_p.topk(top_k, dim=-1).values[:, -1:]
        log_p = log_p.masked_fill(log_p < threshold, float("-inf"))
    if top_p < 1.0:
        ordered, order = log_p.log_softmax(dim=-1).sort(dim=-1, descending=True)
        mass_before = ordered.exp().cumsum(dim=-1) - ordered.exp()
        drop = torch.zeros_like(log_p, dtype=torch.bool).scatter_(-1, order, mass_before >= top_p)
        log_p = log_p.masked_fill(drop, float("-inf"))
    return log_p.log_softmax(dim=-1)

"""Log-probabilities of the permitted pieces, and their warping for sampling."""

import torch
from torch import Tensor

from dragoman.special import BOS, EOS, PAD, UNK

NEVER = (PAD, UNK, BOS)  # in no translation


def log_probabilities(logits: Tensor, *, first: bool) -> Tensor:
    """fp32 log-softmax (N, V) over the permitted pieces; the others are -inf.

    <EOS> is not permitted as the first piece, so that no translation is empty.
    """
    forbidden = torch.tensor([*NEVER, EOS] if first else NEVER, device=logits.device)
    allowed = logits.to(torch.float32, copy=True).index_fill_(-1, forbidden, float("-inf"))
    return allowed.log_softmax(dim=-1)


def warped(log_probs: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Divide by the temperature, keep top_k and top_p, and renormalise.

    top_k = 0 keeps all. top_p is nucleus sampling (Holtzman et al. 2020); the most probable piece always stays.
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

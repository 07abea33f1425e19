"""Word vectors: from ids to vectors, and from vectors to logits (one matrix may serve both, Press & Wolf 2017)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.special import PAD


class Embedding(nn.Module):
    """ids (B, T) -> (B, T, D): each word's vector times sqrt(D).

    The vectors start with a deviation of 1/sqrt(D), which suits the output side when tied; times sqrt(D) they are as
    large as the positions that are added to them.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model, padding_idx=PAD)
        self.scale = math.sqrt(d_model)
        nn.init.normal_(self.table.weight, std=1 / self.scale)
        nn.init.zeros_(self.table.weight[PAD])

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids) * self.scale

    @torch.no_grad()
    def start_from(self, ids: Tensor, vectors: Tensor) -> None:
        """Let the pieces `ids` (N,) start from `vectors` (N, D), scaled by one factor to the random start's size."""
        deviation = vectors.double().square().mean().sqrt()
        self.table.weight[ids] = (vectors / (deviation * self.scale)).to(self.table.weight)


class Projection(nn.Module):
    """states (..., D) -> logits (..., V). There is no bias: a tied matrix is all there is."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model).normal_(std=d_model**-0.5))

    def forward(self, states: Tensor) -> Tensor:
        return F.linear(states, self.weight)

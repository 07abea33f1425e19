"""Embedding of ids and projection to logits; tied in Press & Wolf 2017."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.special import PAD


class Embedding(nn.Module):
    """ids (B, T) -> (B, T, D): vectors times sqrt(D).

    The initial deviation 1/sqrt(D) suits a tied projection; the factor gives vectors the scale of the positions.
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
        """Set pieces `ids` (N,) to `vectors` (N, D), rescaled to the initial deviation."""
        deviation = vectors.double().square().mean().sqrt()
        self.table.weight[ids] = (vectors / (deviation * self.scale)).to(self.table.weight)


class Projection(nn.Module):
    """states (..., D) -> logits (..., V), without a bias."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model).normal_(std=d_model**-0.5))

    def forward(self, states: Tensor) -> Tensor:
        return F.linear(states, self.weight)

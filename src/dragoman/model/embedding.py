"""From ids to vectors and back. The same matrix may serve both ways (Press & Wolf 2017)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.special import PAD


class Embedding(nn.Module):
    """ids (B, T) -> (B, T, D): the word's vector times sqrt(D).

    The vectors start with a deviation of 1/sqrt(D), which is right for the output side when tied; times sqrt(D)
    they are as large as the positions added to them.
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
        """Give the pieces `ids` (N,) these vectors (N, D) to begin with, in the size of the random start.

        One factor for all of them, so that angles stay as they are; the other pieces keep their random vectors.
        """
        deviation = vectors.double().square().mean().sqrt()
        self.table.weight[ids] = (vectors / (deviation * self.scale)).to(self.table.weight)


class Projection(nn.Module):
    """States (..., D) -> logits (..., V); no bias, so that a tied matrix is all there is.

    `by_columns` is a copy of it stored the other way round, for a model that only translates: the product of a few
    states is faster with it, that of many is not.
    """

    by_columns: Tensor | None = None

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model).normal_(std=d_model**-0.5))

    def forward(self, states: Tensor) -> Tensor:
        few = self.by_columns is not None and states.shape[:-1].numel() <= 64
        return F.linear(states, self.by_columns if few else self.weight)  # type: ignore[arg-type]

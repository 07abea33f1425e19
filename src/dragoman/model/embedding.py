"""From ids to vectors and back. The same matrix may serve both ways (Press & Wolf 2017)."""

import math

from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.model.dropout import Dropout
from dragoman.model.position import Position
from dragoman.special import PAD


class Embedding(nn.Module):
    """ids (B, T) -> (B, T, D): the word's vector times sqrt(D), positions on top, dropout over both.

    The vectors start with a deviation of 1/sqrt(D), which is right for the output side when tied; times sqrt(D)
    they are as large as the sinusoids added to them.
    """

    def __init__(self, vocab_size: int, d_model: int, *, position: Position, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model, padding_idx=PAD)
        self.position = position
        self.dropout = Dropout(dropout)
        self.scale = math.sqrt(d_model)
        nn.init.normal_(self.table.weight, std=1 / self.scale)
        nn.init.zeros_(self.table.weight[PAD])

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.dropout(self.position.embed(self.table(ids) * self.scale, positions))


class Projection(nn.Module):
    """States (..., D) -> logits (..., V); no bias, so that a tied matrix is all there is."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.normal_(Tensor(vocab_size, d_model), std=d_model**-0.5))

    def forward(self, states: Tensor) -> Tensor:
        return F.linear(states, self.weight)

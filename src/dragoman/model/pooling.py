"""Sentence vectors: memory (B, S, D) -> one vector (B, D) per sentence.

The mask `padding` (B, S) is True at padding. Padding never changes a vector; a row of only padding gives zeros.
`AttentionPooling` is the pooling of the notes and has parameters; `attention_mean` has none.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def masked_mean(memory: Tensor, padding: Tensor) -> Tensor:
    """sum_i m_i h_i / sum_i m_i, m_i = 0 at padding, else 1 (<EOS> and tag included)."""
    tokens = ~padding[..., None]  # (B, S, 1)
    return (memory * tokens).sum(1) / tokens.sum(1).clamp(min=1)


def first_token(memory: Tensor, padding: Tensor) -> Tensor:
    """h_1, the state of the first piece, or of the direction tag if there is one."""
    return memory[:, 0].masked_fill(padding[:, :1], 0.0)


def attention_mean(memory: Tensor, padding: Tensor) -> Tensor:
    """Attention with the masked mean as query: weights softmax_i(mean.h_i / sqrt(D))."""
    query = masked_mean(memory, padding)[..., None]  # (B, D, 1)
    scores = (memory @ query).squeeze(-1) / memory.size(-1) ** 0.5  # (B, S)
    return (_softmax(scores, padding)[:, None] @ memory).squeeze(1)  # (B, 1, S) @ (B, S, D) -> (B, D)


Pooling = Callable[[Tensor, Tensor], Tensor]
POOLINGS: dict[str, Pooling] = {"mean": masked_mean, "first": first_token, "attention": attention_mean}


class AttentionPooling(nn.Module):
    """e_i = w^T tanh(W h_i + b), alpha = softmax(e), v = sum_i alpha_i h_i (note 002)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(d_model, d_model)  # W and b
        self.score = nn.Linear(d_model, 1, bias=False)  # w

    def forward(self, memory: Tensor, padding: Tensor) -> Tensor:
        return (self.weights(memory, padding)[:, None] @ memory).squeeze(1)

    def weights(self, memory: Tensor, padding: Tensor) -> Tensor:
        """alpha (B, S): each row sums to 1, and padding has weight 0."""
        return _softmax(self.score(torch.tanh(self.hidden(memory))).squeeze(-1), padding)


def _softmax(scores: Tensor, padding: Tensor) -> Tensor:
    """Softmax over the tokens of each row (B, S); zeros for a row without tokens."""
    return scores.masked_fill(padding, float("-inf")).softmax(-1).masked_fill(padding, 0.0)

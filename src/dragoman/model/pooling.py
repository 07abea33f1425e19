"""Memory (B, S, D) -> one vector (B, D) for each sentence: masked mean, first token, attention pooling.

A mask says which of the S positions are a sentence and which are padding, and no padding may change a vector
(note 002, section 5.3). A row that is nothing but padding gives zeros, never NaN. Knows no text and no ids.

Attention pooling stands here twice, because it needs something to ask with. `AttentionPooling` is the note's:
its question (W, b, w) is learnt, so it belongs to whoever trains something on top, a classifier say. Training a
translator learns no such parameters, and random ones would be a random weighting that looks like a result.
Hence `attention_mean`, which needs none: the sentence's own mean asks. It is what a bundle can honestly give.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def masked_mean(memory: Tensor, padding: Tensor) -> Tensor:
    """sum_i m_i h_i / sum_i m_i with m_i = 1 for a token: memory (B, S, D), padding (B, S) True = padding."""
    tokens = ~padding[..., None]  # (B, S, 1)
    return (memory * tokens).sum(1) / tokens.sum(1).clamp(min=1)


def first_token(memory: Tensor, padding: Tensor) -> Tensor:
    """h_1, which has looked at the whole sentence: (B, S, D), (B, S) True = padding -> (B, D).

    No classification token was ever trained to sum up: h_1 is the first piece in its context, or, in a model
    that translates both ways, the tag of the direction.
    """
    return memory[:, 0].masked_fill(padding[:, :1], 0.0)


def attention_mean(memory: Tensor, padding: Tensor) -> Tensor:
    """Scaled dot-product attention with the masked mean as its query: (B, S, D), (B, S) -> (B, D).

    softmax_i(mean . h_i / sqrt(D)) weighs the tokens: those that agree with the sentence as a whole count for
    more, those that point elsewhere for less. No parameters.
    """
    scores = (memory @ masked_mean(memory, padding)[..., None]).squeeze(-1) / memory.size(-1) ** 0.5  # (B, S)
    return _weighted(_softmax(scores, padding), memory)


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": masked_mean,
    "first": first_token,
    "attention": attention_mean,
}


class AttentionPooling(nn.Module):
    """e_i = w^T tanh(W h_i + b), padding to -inf, alpha = softmax(e), v = sum_i alpha_i h_i (note 002, 5.3).

    For training on top of an encoder; W is (D, D). No bundle holds its parameters.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(d_model, d_model)  # W and b
        self.score = nn.Linear(d_model, 1, bias=False)  # w

    def forward(self, memory: Tensor, padding: Tensor) -> Tensor:
        """memory (B, S, D), padding (B, S) True = padding -> (B, D)."""
        return _weighted(self.weights(memory, padding), memory)

    def weights(self, memory: Tensor, padding: Tensor) -> Tensor:
        """alpha (B, S): each row sums to 1, padding has none of it."""
        return _softmax(self.score(torch.tanh(self.hidden(memory))).squeeze(-1), padding)


def _softmax(scores: Tensor, padding: Tensor) -> Tensor:
    """Over the tokens of each row (B, S). The second mask turns the NaN of a row without tokens into zeros."""
    return scores.masked_fill(padding, float("-inf")).softmax(-1).masked_fill(padding, 0.0)


def _weighted(weights: Tensor, memory: Tensor) -> Tensor:
    return (weights[:, None] @ memory).squeeze(1)  # (B, 1, S) @ (B, S, D) -> (B, D)

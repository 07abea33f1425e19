"""Multi-head attention: softmax(QK^T / sqrt(d)) V, H times in parallel (Vaswani et al. 2017, section 3.2).

One class serves self- and cross-attention; what differs is only where keys and values come from. One projection is
made for all heads and then split: splitting the input first would keep each head from seeing the whole vector.
It knows nothing of layers, padding ids or what the masks mean.
"""

import math
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.masks import causal_attn_mask
from dragoman.model.position import Position
from dragoman.model.varlen import Paired, attend_runs


class Dot(nn.Module):
    """q.k: its variance is d where q and k have variance 1, and a softmax over such numbers saturates."""

    def __init__(self, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """(B, H, T_q, d), (B, H, T_k, d) -> scores (B, H, T_q, T_k)."""
        return q @ k.transpose(-2, -1) * self.scale


class ScaledDot(Dot):
    """q.k / sqrt(d): its variance is 1 whatever d is (Vaswani et al. 2017, section 3.2.1)."""

    def __init__(self, n_heads: int, d_head: int) -> None:
        super().__init__(n_heads, d_head)
        self.scale = 1 / math.sqrt(d_head)


class Additive(nn.Module):
    """w.tanh(q + k), a small network in place of the product (Bahdanau et al. 2015); a vector w for each head.

    The paper's two matrices are the projections that made q and k. It needs room for (B, H, T_q, T_k, d) numbers,
    d times as much as the products do.
    """

    def __init__(self, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(n_heads, d_head).normal_(std=d_head**-0.5))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """(B, H, T_q, d), (B, H, T_k, d) -> scores (B, H, T_q, T_k)."""
        # Contiguous first: the sum would inherit the layout of q and k, and the product copy all of it.
        q, k = q.contiguous(), k.contiguous()
        met = torch.tanh(q[..., :, None, :] + k[..., None, :, :])  # (B, H, T_q, T_k, d)
        return (met @ self.w[:, None, :, None].to(met.dtype)).squeeze(-1)


SCORES: dict[str, type[Dot | Additive]] = {"scaled_dot": ScaledDot, "dot": Dot, "additive": Additive}


class Attention(nn.Module):
    """query (B, T_q, D) looks at key_value (B, T_k, D) -> (B, T_q, D).

    `position` is given for self-attention only. A search decodes with the same weights in step.py, word by word.
    """

    def __init__(
        self, d_model: int, n_heads: int, *, score: str, dropout: float, position: Position | None = None
    ) -> None:
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.score = SCORES[score](n_heads, self.d_head)
        self.dropout = dropout
        self.position = position
        self.q = nn.Linear(d_model, d_model)
        self.kv = nn.Linear(d_model, 2 * d_model)  # keys and values read the same input: one product
        self.out = nn.Linear(d_model, d_model)

    def forward(
        self,
        query: Tensor,
        key_value: Tensor,
        attn_mask: Tensor | Paired | None = None,
        *,
        causal: bool = False,
        positions: Tensor | None = None,
    ) -> Tensor:
        """attn_mask broadcastable to (B, H, T_q, T_k), True = may attend, or the same said as pairs of runs (see
        varlen.py); `causal` hides later keys."""
        q, k, v, bias = self._project(query, key_value, positions)
        mixed = self.attend(q, k, v, bias, attn_mask, causal)  # (B, H, T_q, d)
        return self.out(mixed.transpose(1, 2).flatten(2))  # (B, T_q, D)

    def weights(
        self,
        query: Tensor,
        key_value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        causal: bool = False,
        positions: Tensor | None = None,
    ) -> Tensor:
        """The softmax weights (B, H, T_q, T_k) that `forward` uses for the same arguments."""
        q, k, _, bias = self._project(query, key_value, positions)
        return self._weights(q, k, bias, attn_mask, causal)

    def _project(
        self, query: Tensor, key_value: Tensor, positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        q = self._heads(self.q(query))  # (B, H, T_q, d)
        k, v = (self._heads(x) for x in self.kv(key_value).chunk(2, dim=-1))
        if self.position is None:
            return q, k, v, None
        if positions is None:
            positions = torch.arange(query.size(1), device=query.device)
        q, k = self.position.rotate(q, positions), self.position.rotate(k, positions)
        return q, k, v, self.position.bias(q, k, positions, positions)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.n_heads, self.d_head).transpose(1, 2)  # (B, T, D) -> (B, H, T, d)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        attn_mask: Tensor | Paired | None,
        causal: bool = False,
    ) -> Tensor:
        """Of projected q, k and v, (B, H, T, d) each: the values mixed, (B, H, T_q, d)."""
        dropout = self.dropout if self.training else 0.0
        if isinstance(attn_mask, Paired):
            assert isinstance(self.score, Dot)
            assert bias is None  # varlen.refusal was asked before
            assert not dropout
            return attend_runs(q, k, v, attn_mask, causal=causal, scale=self.score.scale)
        if not isinstance(self.score, Dot):
            return F.dropout(self._weights(q, k, bias, attn_mask, causal), dropout).to(v.dtype) @ v
        if causal and (attn_mask is not None or bias is not None):
            attn_mask, causal = _with_causal(attn_mask, q, k), False
        # torch's bf16 backward of this product is ten times slower than its fp32 one on a CPU.
        wide = q.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        if wide:
            q, k, v = q.float(), k.float(), v.float()
        if bias is not None:  # SDPA adds a mask of numbers to the scores
            attn_mask = _masked(bias.to(q.dtype), attn_mask)
        with torch.autocast("cpu", enabled=False) if wide else nullcontext():
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=attn_mask, dropout_p=dropout, is_causal=causal, scale=self.score.scale
            )

    def _weights(
        self, q: Tensor, k: Tensor, bias: Tensor | None, attn_mask: Tensor | None, causal: bool
    ) -> Tensor:
        scores = self.score(q, k)
        if bias is not None:
            scores = scores + bias
        if causal:
            attn_mask = _with_causal(attn_mask, q, k)
        return _masked(scores, attn_mask).softmax(dim=-1)


def _masked(scores: Tensor, attn_mask: Tensor | None) -> Tensor:
    """-inf where nobody may look, before the softmax: zeros after it would leave rows that do not sum to 1."""
    return scores if attn_mask is None else scores.masked_fill(~attn_mask, float("-inf"))


def _with_causal(attn_mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor:
    causal = causal_attn_mask(q.size(2), k.size(2), q.device)
    return causal if attn_mask is None else attn_mask & causal

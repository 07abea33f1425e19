"""Multi-head attention, softmax(QK^T / sqrt(d)) V (Vaswani et al. 2017, 3.2).

One class serves self-attention and cross-attention. The output of one projection is split into heads. Splitting the
input instead would restrict each head to a part of the vector.

torch has two kinds of masks, and only this file converts the first to the second (in the study notes, True = hidden):
a *key padding mask* is (B, T) with **True = padding** (as in torch.nn.MultiheadAttention);
an *attn_mask* is broadcastable to (B, H, T_q, T_k) with **True = may attend** (as in scaled_dot_product_attention).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config import ModelConfig
from dragoman.errors import choose
from dragoman.model.cache import KeyValues
from dragoman.model.position import Position

# cuDNN's attention makes a plan for each new shape, and nearly every batch and decoding step has a new shape.
torch.backends.cuda.enable_cudnn_sdp(False)


def padding_attn_mask(key_padding_mask: Tensor | None) -> Tensor | None:
    """(B, T_k) True = padding -> (B, 1, 1, T_k) True = may attend; None stays None."""
    return None if key_padding_mask is None else ~key_padding_mask[:, None, None, :]


def causal_attn_mask(n_queries: int, n_keys: int, device: torch.device | None = None) -> Tensor:
    """(1, 1, T_q, T_k) True = may attend; the last query may attend to every key.

    The mask is aligned at the bottom right, so it is also correct with a cache, where T_q < T_k. (`is_causal` of
    SDPA aligns at the top left. A single new query would see the first key only.)
    """
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)[None, None]


class Dot(nn.Module):
    """q.k: variance d if q and k have variance 1, so a large d saturates the softmax."""

    fused = True  # whether F.scaled_dot_product_attention supports it
    ctranslate2 = True  # whether CTranslate2 supports it
    scale = 1.0

    def __init__(self, n_heads: int, d_head: int) -> None:
        super().__init__()

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """(B, H, T_q, d), (B, H, T_k, d) -> scores (B, H, T_q, T_k)."""
        return q @ k.transpose(-2, -1) * self.scale


class ScaledDot(Dot):
    """q.k / sqrt(d), whose variance does not grow with d (Vaswani et al. 2017)."""

    def __init__(self, n_heads: int, d_head: int) -> None:
        super().__init__(n_heads, d_head)
        self.scale = 1 / math.sqrt(d_head)


class Additive(nn.Module):
    """w.tanh(q + k), additive attention (Bahdanau et al. 2015); one w per head.

    W_a and U_a of the paper are the projections of q and k. The sum needs d times the memory of a dot product.
    """

    fused = False
    ctranslate2 = False
    scale = 1.0

    def __init__(self, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(n_heads, d_head).normal_(std=d_head**-0.5))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """(B, H, T_q, d), (B, H, T_k, d) -> scores (B, H, T_q, T_k)."""
        # Contiguous, so that the matrix product does not copy the large sum.
        q, k = q.contiguous(), k.contiguous()
        hidden = torch.tanh(q[..., :, None, :] + k[..., None, :, :])  # (B, H, T_q, T_k, d)
        return (hidden @ self.w[:, None, :, None].to(hidden.dtype)).squeeze(-1)


SCORES: dict[str, type[Dot | Additive]] = {"scaled_dot": ScaledDot, "dot": Dot, "additive": Additive}


class Attention(nn.Module):
    """Attention of query (B, T_q, D) to key_value (B, T_k, D) -> (B, T_q, D).

    `position` is only for self-attention. `fused` selects torch's fused kernel, which does not store attention weights;
    training on a CPU does not use it.
    """

    def __init__(self, config: ModelConfig, position: Position | None = None) -> None:
        super().__init__()
        d_model, self.n_heads, self.d_head = config.d_model, config.n_heads, config.d_model // config.n_heads
        self.score = choose("model.score", config.score, SCORES)(self.n_heads, self.d_head)
        self.fused = self.score.fused
        self.dropout, self.position = config.attention_dropout, position
        if position is not None and isinstance(self.score, Dot):
            position.scale = self.score.scale  # transformer_xl adds terms to the scores
        self.q = nn.Linear(d_model, d_model)  # W^Q of all heads
        self.kv = nn.Linear(d_model, 2 * d_model)  # W^K and W^V in one, because keys and values have the same input
        self.out = nn.Linear(d_model, d_model)  # W^O

    def forward(
        self,
        query: Tensor,
        key_value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        causal: bool = False,
        cache: KeyValues | None = None,
    ) -> Tensor:
        """Return (B, T_q, D). attn_mask broadcasts to (B, H, T_q, T_k), True = may attend."""
        q, k, v, bias = self._project(query, key_value, cache)
        # On a CPU, the backward pass of the fused kernel is slower than plain products, above all in bf16.
        if self.fused and not (q.requires_grad and q.device.type == "cpu"):
            heads = self._fused(q, k, v, bias, attn_mask, causal)  # (B, H, T_q, d)
        else:
            weights = self._softmax(q, k, bias, attn_mask, causal)  # (B, H, T_q, T_k)
            heads = F.dropout(weights, self.dropout, self.training).to(v.dtype) @ v  # (B, H, T_q, d)
        return self.out(heads.transpose(1, 2).flatten(2))  # Concat and W^O: (B, T_q, D)

    def _softmax(self, q: Tensor, k: Tensor, bias: Tensor | None, attn_mask: Tensor | None, causal: bool) -> Tensor:
        """Return the attention weights: the softmax of the masked scores plus bias."""
        scores = self.score(q, k)  # (B, H, T_q, T_k)
        if bias is not None:
            scores = scores + bias
        attn_mask = _with_causal(attn_mask, causal, q, k)
        if attn_mask is not None:
            # Before the softmax, because zeros after it would give rows that do not sum to 1.
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        return scores.softmax(dim=-1)

    def _fused(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, attn_mask: Tensor | None, causal: bool
    ) -> Tensor:
        """Return the attention weights @ v, computed by one kernel of torch."""
        if attn_mask is not None or bias is not None or q.size(2) != k.size(2):
            # torch's fast `is_causal` allows no other mask, and is wrong for T_q != T_k.
            attn_mask, causal = _with_causal(attn_mask, causal, q, k), False
        if bias is not None:
            bias = bias.to(q.dtype)
            attn_mask = bias if attn_mask is None else bias.masked_fill(~attn_mask, float("-inf"))
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout, causal, scale=self.score.scale)

    def weights(
        self, query: Tensor, key_value: Tensor, mask: Tensor | None = None, *, causal: bool = False, cache: None = None
    ) -> Tensor:
        """Return the attention weights (B, H, T_q, T_k) of `forward` without a cache."""
        q, k, _, bias = self._project(query, key_value, None)
        return self._softmax(q, k, bias, mask, causal)

    def _project(
        self, query: Tensor, key_value: Tensor, cache: KeyValues | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return q (B, H, T_q, d), k and v (B, H, T_k, d), and the bias of the scores."""
        q = self._heads(self.q(query))
        # Cross-attention projects the encoder's output at the first step only.
        if cache is not None and cache.length and not cache.grows:
            return q, *cache.keys_values, None
        k, v = map(self._heads, self.kv(key_value).chunk(2, dim=-1))
        if self.position is None:
            return q, *((k, v) if cache is None else cache.append(k, v)), None
        past = 0 if cache is None else cache.length
        k_positions = torch.arange(past + key_value.size(1), device=query.device)
        q, k = self.position.rotate(q, k_positions[past:]), self.position.rotate(k, k_positions[past:])
        if cache is not None:
            k, v = cache.append(k, v)
        return q, k, v, self.position.bias(q, k, k_positions[past:], k_positions)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.n_heads, self.d_head).transpose(1, 2)  # (B, T, D) -> (B, H, T, d)


def _with_causal(attn_mask: Tensor | None, causal: bool, q: Tensor, k: Tensor) -> Tensor | None:
    """Combine both masks; a single query is the last token and attends to all keys."""
    if not causal or q.size(2) == 1:
        return attn_mask
    causal_mask = causal_attn_mask(q.size(2), k.size(2), q.device)
    return causal_mask if attn_mask is None else attn_mask & causal_mask

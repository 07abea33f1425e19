"""Who may look at whom.

Two polarities live in the torch world, and this is the only file that knows both:
a *key padding mask* is (B, T) with **True = padding** (as in torch.nn.MultiheadAttention);
an *attn_mask* is what scaled_dot_product_attention takes, broadcastable to (B, H, T_q, T_k), **True = may attend**.
Nothing here knows about words, layers or devices beyond those of its arguments.
"""

import torch
from torch import Tensor

from dragoman.special import PAD


def key_padding_mask(ids: Tensor) -> Tensor:
    """(B, T) ids -> (B, T) bool, True = padding."""
    return ids == PAD


def padding_attn_mask(key_padding_mask: Tensor | None) -> Tensor | None:
    """(B, T_k) True = padding -> (B, 1, 1, T_k) True = may attend: every query sees every real key; None: all."""
    return None if key_padding_mask is None else ~key_padding_mask[:, None, None, :]


def segment_attn_mask(q_segments: Tensor, k_segments: Tensor) -> Tensor:
    """(B, T_q), (B, T_k) numbers of the pairs packed into a row, 0 = padding -> (B, 1, T_q, T_k) True = may attend.

    Block-diagonal: a token sees those of its own pair, on the same or on the other side. Padding asks everybody, for
    nobody reads its answer, and one who may look at nothing gets NaN, which spreads in the backward pass.
    """
    same = q_segments[:, :, None] == k_segments[:, None, :]
    return (same | (q_segments == 0)[:, :, None])[:, None]


def causal_attn_mask(n_queries: int, n_keys: int, device: torch.device | None = None) -> Tensor:
    """(1, 1, T_q, T_k) True = may attend; the last query sees every key.

    Aligned at the bottom right, so that it is also right with a cache, when T_q < T_k. (SDPA's own `is_causal`
    aligns at the top left and would hide the past from a single new query.)
    """
    may = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return may.tril(n_keys - n_queries)[None, None]

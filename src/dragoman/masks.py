"""Attention masks.

torch uses two polarities, and only this file converts between them:
a *key padding mask* is (B, T) with **True = padding** (as in torch.nn.MultiheadAttention);
an *attn_mask* is broadcastable to (B, H, T_q, T_k) with **True = may attend** (as in scaled_dot_product_attention).
"""

import torch
from torch import Tensor

from dragoman.special import PAD


def key_padding_mask(ids: Tensor) -> Tensor:
    """(B, T) ids -> (B, T) bool, True = padding."""
    return ids == PAD


def padding_attn_mask(key_padding_mask: Tensor | None) -> Tensor | None:
    """(B, T_k) True = padding -> (B, 1, 1, T_k) True = may attend; None stays None."""
    return None if key_padding_mask is None else ~key_padding_mask[:, None, None, :]


def causal_attn_mask(n_queries: int, n_keys: int, device: torch.device | None = None) -> Tensor:
    """(1, 1, T_q, T_k) True = may attend; the last query may attend to every key.

    The mask is aligned at the bottom right, so it is also correct with a cache, where T_q < T_k. (`is_causal` of
    SDPA aligns at the top left. A single new query would see the first key only.)
    """
    attn_mask = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return attn_mask.tril(n_keys - n_queries)[None, None]

"""Key/value cache for incremental decoding.

Each decoder layer keeps two sets of keys and values: those of the target so far, which grow by one token per step,
and those of the source, computed at the first step. A search re-orders and drops rows by `select`.
"""

import torch
from torch import Tensor


class KeyValues:
    """Keys and values, (N, H, T, d) each; in cross-attention (B, H, S, d)."""

    def __init__(self, *, grows: bool) -> None:
        self.grows = grows
        self.keys_values = torch.empty(2, 0, 0, 0, 0)  # (2, N, H, T, d): keys, values

    @property
    def length(self) -> int:
        """Number of tokens so far."""
        return self.keys_values.size(3)

    def append(self, k: Tensor, v: Tensor) -> Tensor:
        """Add the keys and values of new tokens, (N, H, t, d) each; return all so far."""
        new = torch.stack((k, v))
        self.keys_values = torch.cat((self.keys_values, new), dim=3) if self.length else new
        return self.keys_values

    def select(self, rows: Tensor) -> None:
        """Keep these rows (n,), in this order; repeats are allowed."""
        self.keys_values = self.keys_values.index_select(1, rows)


class DecoderCache:
    """Keys and values of all layers, and the memory (B, S, D) with its padding mask.

    There are N = B * k rows. The k rows of a sentence (its beams or samples) are consecutive and share the keys and
    values of their source.
    """

    def __init__(self, n_layers: int, memory: Tensor, memory_key_padding_mask: Tensor | None) -> None:
        self.memory, self.memory_key_padding_mask = memory, memory_key_padding_mask
        self.layers = [(KeyValues(grows=True), KeyValues(grows=False)) for _ in range(n_layers)]

    @property
    def length(self) -> int:
        """Number of target tokens so far."""
        return self.layers[0][0].length

    def select(self, rows: Tensor) -> None:
        """Keep these rows (n,), in this order; all k rows of a sentence stay or leave."""
        k = self.layers[0][0].keys_values.size(1) // len(self.memory)
        sentences = rows[::k] // k  # row r belongs to sentence r // k
        for self_attention, _ in self.layers:
            self_attention.select(rows)
        if len(sentences) < len(self.memory):
            for _, cross_attention in self.layers:
                cross_attention.select(sentences)
            self.memory = self.memory[sentences]
            if self.memory_key_padding_mask is not None:
                self.memory_key_padding_mask = self.memory_key_padding_mask[sentences]

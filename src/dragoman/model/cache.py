"""What decoding remembers between two steps, so that no prefix is computed twice.

Per decoder layer: the keys and values of the tokens so far (they grow) and those of the source (made once, at the
first step). A search sees only `select`: which rows go on, in which order; beams are re-ordered and finished
sentences dropped by the same call.
"""

import torch
from torch import Tensor


class KeyValues:
    """Keys and values (N, H, T, d) of one attention. Room doubles when it runs out: no allocation per step."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None
        self.length = 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add (N, H, T_new, d) and return all keys and values so far."""
        end = self.length + k.size(2)
        if self.k is None or self.v is None or end > self.k.size(2):
            self.k, self.v = self._grown(self.k, k, end), self._grown(self.v, v, end)
        self.k[:, :, self.length : end] = k
        self.v[:, :, self.length : end] = v
        self.length = end
        return self.k[:, :, :end], self.v[:, :, :end]

    def _grown(self, old: Tensor | None, new: Tensor, end: int) -> Tensor:
        room = new.new_empty(new.size(0), new.size(1), max(16, 2 * end), new.size(3))
        if old is not None:
            room[:, :, : self.length] = old[:, :, : self.length]
        return room

    def select(self, rows: Tensor) -> None:
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)


class DecoderCache:
    """One per search: the layers' own and cross keys and values, and the source padding that belongs to them."""

    def __init__(self, n_layers: int, memory: Tensor, memory_key_padding_mask: Tensor) -> None:
        self.memory = memory  # (N, S, D): read at the first step only, then its keys and values are here
        self.memory_key_padding_mask = memory_key_padding_mask  # (N, S)
        self.own = [KeyValues() for _ in range(n_layers)]
        self.cross = [KeyValues() for _ in range(n_layers)]

    @property
    def length(self) -> int:
        """Target tokens seen so far."""
        return self.own[0].length

    def select(self, rows: Tensor) -> "DecoderCache":
        """Keep these rows (n,), in this order; repeats are allowed. Changes this cache and returns it."""
        rows = rows.to(self.memory_key_padding_mask.device)
        for key_values in (*self.own, *self.cross):
            key_values.select(rows)
        self.memory_key_padding_mask = self.memory_key_padding_mask.index_select(0, rows)
        if self.length == 0:  # afterwards the cross keys and values stand for it
            self.memory = self.memory.index_select(0, rows)
        else:
            self.memory = torch.empty(rows.numel(), 0, 0, device=rows.device)
        return self

"""What decoding remembers between two steps, so that no prefix is computed twice and nothing is moved in vain.

Per decoder layer: the keys and values of the tokens so far (they grow) and those of the source (made once, at the
first step). A search sees only `select`: which rows go on, in which order; beams are re-ordered and finished
sentences dropped by the same call. Three choices keep that cheap:
  - rows of one sentence that stand together read one copy of the source's keys and values: re-ordering the beams
    of a sentence touches none of them;
  - a row that stays where it is is not copied, and the others take their places within the same memory;
  - tokens come first in that memory, so that a step writes one block, and unused room is never copied.
Which rows move is worked out on the CPU, where a search keeps its books: no step waits for a GPU because of it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class KeyValues:
    """Keys and values (N, H, T, d) of one attention. Room doubles when it runs out: no allocation per step."""

    def __init__(self) -> None:
        self.length = 0  # T
        self._room: Tensor | None = None  # (room for T, room for N, keys | values, H, d)
        self._in_use: Tensor | None = None  # of it, the N rows

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add (N, H, T_new, d) and return all keys and values so far."""
        n_rows, n_heads, n_new, d_head = k.shape
        new = self._room_for(n_new, k, (n_rows, 2, n_heads, d_head))
        new[:, :, 0], new[:, :, 1] = k.permute(2, 0, 1, 3), v.permute(2, 0, 1, 3)
        return self.kept()

    def append_one(self, kv: Tensor) -> tuple[Tensor, Tensor]:
        """`append` of one token: its keys and values (N, 2, H, d) lie side by side, as here, and are copied at once."""
        self._room_for(1, kv, kv.shape)[0] = kv
        return self.kept()

    def _room_for(self, n_tokens: int, like: Tensor, shape: Sequence[int]) -> Tensor:
        end = self.length + n_tokens
        if self._in_use is None or end > self._in_use.size(0):
            room = like.new_empty(max(16, end, 2 * self.length), *shape)
            if self._in_use is not None:
                room[: self.length] = self._in_use[: self.length]
            self._room = self._in_use = room
        new = self._in_use[self.length : end]
        self.length = end
        return new

    def kept(self) -> tuple[Tensor, Tensor]:
        """All keys and values so far, each (N, H, T, d)."""
        assert self._in_use is not None, "nothing was appended yet"
        k, v = self._in_use[: self.length].permute(2, 1, 3, 0, 4)
        return k, v

    def select(self, rows: "Rows") -> None:
        if self._room is None:
            return
        if rows.n > self._room.size(1):
            self._room = self._room.index_select(1, rows.all())
        elif len(rows.places):
            kept = self._room[: self.length]
            kept.index_copy_(1, rows.places, kept.index_select(1, rows.movers))
        self._in_use = self._room[:, : rows.n]


class Rows:
    """Which rows go on, (n,) on the CPU: and of them, on the device, those that change places, and which these are."""

    def __init__(self, rows: Tensor, device: torch.device) -> None:
        self.n, self._rows, self._device = len(rows), rows, device
        places = (rows != torch.arange(self.n)).nonzero()[:, 0]
        self.places, self.movers = self._there(places), self._there(rows[places])

    def all(self) -> Tensor:
        return self._there(self._rows)

    def _there(self, rows: Tensor) -> Tensor:
        return rows.to(self._device, non_blocking=self._device.type == "cuda")


class DecoderCache:
    """One per search: the layers' own and cross keys and values, and the source padding that belongs to the latter.

    Decoding takes N rows of tokens, and memory and padding of B sentences: each has N / B of the rows, side by side.
    """

    def __init__(self, n_layers: int, memory: Tensor, memory_key_padding_mask: Tensor | None) -> None:
        self.memory = memory  # (B, S, D): read at the first step only, then its keys and values are here
        self.memory_key_padding_mask = memory_key_padding_mask  # (B, S)
        self.own = [KeyValues() for _ in range(n_layers)]
        self.cross = [KeyValues() for _ in range(n_layers)]
        self._n_sentences, self._rows_per_sentence = memory.size(0), 1

    @property
    def length(self) -> int:
        """Target tokens seen so far."""
        return self.own[0].length

    def select(self, rows: Tensor) -> "DecoderCache":
        """Keep these rows (n,), in this order; repeats are allowed. Changes this cache and returns it."""
        rows = rows.cpu()
        device = self.memory.device
        own = Rows(rows, device)
        for key_values in self.own:
            key_values.select(own)
        self._select_sentences(rows // self._rows_per_sentence, device)
        return self

    def _select_sentences(self, sentences: Tensor, device: torch.device) -> None:
        """`sentences` (n,): that of each row. Rows share it where every sentence has as many of them."""
        distinct, n_rows = sentences.unique_consecutive(return_counts=True)
        n = len(sentences)
        if bool((n_rows == n_rows[:1]).all()):
            sentences = distinct
        self._rows_per_sentence = n // max(1, len(sentences))
        going_on = Rows(sentences, device)
        if going_on.n == self._n_sentences and not len(going_on.places):
            return
        for key_values in self.cross:
            key_values.select(going_on)
        if self.memory_key_padding_mask is not None:
            self.memory_key_padding_mask = self.memory_key_padding_mask.index_select(0, going_on.all())
        # Afterwards the cross keys and values stand for it.
        self.memory = (
            self.memory.index_select(0, going_on.all()) if self.length == 0 else self.memory.new_empty(0)
        )
        self._n_sentences = going_on.n

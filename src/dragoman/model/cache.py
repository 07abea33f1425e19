"""What decoding remembers between two steps, so that no prefix is computed twice and nothing is moved in vain.

Per decoder layer: the keys and values of the tokens so far (they grow) and those of the source (they do not). A search
sees two things: `select`, which rows go on, in which order (beams are re-ordered and finished sentences dropped by the
same call), and `join`, by which what is left of two batches goes on as one. What keeps that cheap:
  - rows of one sentence that stand together read one copy of the source's keys and values: re-ordering the beams
    of a sentence touches none of them;
  - a row that stays where it is is not copied, and the others take their places within the same memory;
  - where batches of different ages join, a step still adds its tokens to all rows at one place; what stands before
    the beginning of the younger ones is masked, and cut off when nobody needs it any more.
Which rows move is worked out on the CPU, where a search keeps its books: no step waits for a GPU because of it.
"""

import torch
from torch import Tensor

from dragoman.masks import padding_attn_mask


class KeyValues:
    """Keys and values of one attention, (N, H, T, d) each. Room doubles when it runs out: no allocation per step."""

    def __init__(self, room: Tensor, length: int) -> None:
        """`room` (2, N, H, T or more, d): keys, then values; the first `length` tokens of it are there."""
        self._room, self.n_rows, self.length = room, room.size(1), length

    @property
    def device(self) -> torch.device:
        return self._room.device

    def kept(self) -> tuple[Tensor, Tensor]:
        """All keys and values so far, each (N, H, T, d)."""
        k, v = self._room[:, : self.n_rows, :, : self.length]
        return k, v

    def append(self, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Add one token, (N, 2, H, d), and return all keys and values so far."""
        if self.length == self._room.size(3):
            room = self.room_for(self.n_rows, max(16, 2 * self.length))
            room[:, :, :, : self.length] = self._room[:, : self.n_rows]
            self._room = room
        self._room[:, : self.n_rows, :, self.length] = kv.transpose(0, 1)
        self.length += 1
        return self.kept()

    def select(self, rows: "Rows") -> None:
        room = self._room.size(1)
        if rows.n > room or 2 * rows.n <= room:  # a batch that waits for others does not keep what it had
            self._room = self._room.index_select(1, rows.all())
        elif len(rows.places):
            kept = self._room[:, :, :, : self.length]
            kept[:, rows.places] = kept[:, rows.movers]
        self.n_rows = rows.n

    def join(self, other: "KeyValues", *, ends_meet: bool) -> None:
        """The rows of `other` after those here. The fewer tokens have zeros before them where `ends_meet`, else after.

        (Not what happens to be there: it is masked, but 0 times NaN would be NaN.)
        """
        n_rows, length = self.n_rows + other.n_rows, max(self.length, other.length)
        room = self.room_for(n_rows, length).zero_()
        for rows, one in ((slice(self.n_rows), self), (slice(self.n_rows, None), other)):
            first = length - one.length if ends_meet else 0
            room[:, rows, :, first : first + one.length] = one._room[:, : one.n_rows, :, : one.length]
        self._room, self.n_rows, self.length = room, n_rows, length

    def cut(self, first: int, last: int) -> None:
        """Only the tokens from `first` up to `last` are looked at from now on. Moves nothing."""
        self._room, self.length = self._room[:, :, :, first:], last - first

    def room_for(self, n_rows: int, n_tokens: int) -> Tensor:
        """Memory like this one's, in which nothing stands yet."""
        halves, _, n_heads, _, d_head = self._room.shape
        return self._room.new_empty(halves, n_rows, n_heads, n_tokens, d_head)


class Rows:
    """Which rows go on, (n,) on the CPU: and of them, on the device, those that change places, and which these are."""

    def __init__(self, here: Tensor, device: torch.device) -> None:
        self.n, self.here, self._device = len(here), here, device
        places = (here != torch.arange(self.n)).nonzero()[:, 0]
        self.places, self.movers = to_device(places, device), to_device(here[places], device)

    def all(self) -> Tensor:
        return to_device(self.here, self._device)


class DecoderCache:
    """One per search: the layers' own and cross keys and values, and who may look at which of them.

    It holds N rows of tokens and the sources of B sentences: each sentence has N / B of the rows, side by side.
    """

    def __init__(self, own: list[KeyValues], cross: list[KeyValues], source_lengths: Tensor) -> None:
        """`source_lengths` (B,) on the CPU, EOS included: what stands behind them in `cross` is padding."""
        self.own, self.cross = own, cross
        self._source_lengths, self._rows_per_sentence = source_lengths, 1
        self._begins = torch.zeros(own[0].n_rows, dtype=torch.long)  # (N,): the place at which each row began
        self._look_around()

    @property
    def length(self) -> int:
        """Places of the target so far: as many as the oldest row has tokens."""
        return self.own[0].length

    @property
    def n_sentences(self) -> int:
        return len(self._source_lengths)

    def positions(self) -> Tensor:
        """Where in its own sentence each row's next token stands: (1,) where they are alike, else (N, 1)."""
        if self._began is None:
            return torch.arange(self.length, self.length + 1, device=self._device)
        return self.length - self._began

    def own_mask(self) -> Tensor | None:
        """(N, 1, 1, T + 1), True = a place of the row's own sentence, the next one included; None: all are."""
        if self._began is None:
            return None
        return padding_attn_mask(torch.arange(self.length + 1, device=self._device) < self._began)

    def select(self, rows: Tensor) -> None:
        """Keep these rows (n,), in this order; repeats are allowed."""
        rows = rows.cpu()
        n_rows, n_sentences = len(self._begins), self.n_sentences
        own, sentences = Rows(rows, self._device), self._sentences_of(rows)
        for key_values in self.own:
            key_values.select(own)
        self._begins = self._begins[rows]
        if sentences.n != n_sentences or len(sentences.places):
            self._select_sentences(sentences)
        elif len(rows) == n_rows:
            return  # beams of the same sentences
        self._look_around()

    def join(self, other: "DecoderCache") -> None:
        """The rows of `other` after those here: their next tokens take the same place."""
        if self._rows_per_sentence != other._rows_per_sentence:  # as when one draw of several has ended
            self._spread()
            other._spread()
        length = max(self.length, other.length)
        self._begins = torch.cat([one._begins + length - one.length for one in (self, other)])
        self._source_lengths = torch.cat((self._source_lengths, other._source_lengths))
        for mine, theirs in zip(self.own, other.own, strict=True):
            mine.join(theirs, ends_meet=True)
        for mine, theirs in zip(self.cross, other.cross, strict=True):
            mine.join(theirs, ends_meet=False)
        self._look_around()

    def _sentences_of(self, rows: Tensor) -> "Rows":
        """Those that these rows are of. Rows share one where every sentence has as many of them."""
        sentences = rows // self._rows_per_sentence
        distinct, n_rows = sentences.unique_consecutive(return_counts=True)
        if bool((n_rows == n_rows[:1]).all()):
            sentences = distinct
        self._rows_per_sentence = len(rows) // max(1, len(sentences))
        return Rows(sentences, self._device)

    def _select_sentences(self, sentences: "Rows") -> None:
        for key_values in self.cross:
            key_values.select(sentences)
        self._source_lengths = self._source_lengths[sentences.here]

    def _spread(self) -> None:
        """Every row gets a copy of its own."""
        rows = torch.arange(self.n_sentences).repeat_interleave(self._rows_per_sentence)
        self._rows_per_sentence = 1
        self._select_sentences(Rows(rows, self._device))

    def _look_around(self) -> None:
        """After rows came or left: cut off what nobody looks at any more, and mask what not all may look at."""
        if not self.n_sentences:
            return
        first, longest = int(self._begins.min()), int(self._source_lengths.max())
        if first:
            self._begins = self._begins - first
            for key_values in self.own:
                key_values.cut(first, key_values.length)
        if longest < self.cross[0].length:
            for key_values in self.cross:
                key_values.cut(0, longest)
        self._began: Tensor | None = None  # (N, 1) on the device, where not all began together
        if bool(self._begins.any()):
            self._began = to_device(self._begins[:, None], self._device)
        self.source_mask: Tensor | None = None  # (B, 1, 1, S), True = no padding; None: there is none
        padding = torch.arange(longest) >= self._source_lengths[:, None]
        if bool(padding.any()):
            self.source_mask = padding_attn_mask(to_device(padding, self._device))

    @property
    def _device(self) -> torch.device:
        return self.own[0].device


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """From the CPU, without waiting for a GPU."""
    return tensor.to(device, non_blocking=device.type == "cuda")

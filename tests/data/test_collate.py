"""Padding, the shift, and that the fast path agrees with the plain one."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.collate import collate, pack, pairs_of, rectangle
from dragoman.special import BOS, EOS, PAD

rows = st.lists(st.lists(st.integers(4, 99), max_size=9), min_size=1, max_size=6)


@given(rows)
def test_every_row_can_be_read_back_from_the_batch(ids: list[list[int]]) -> None:
    batch = collate(ids, ids[::-1])
    for row, src, src_padding in zip(ids, batch.src, batch.src_key_padding_mask, strict=True):
        assert src[~src_padding].tolist() == [*row, EOS]
        assert (src[src_padding] == PAD).all()
    for row, tgt_in, tgt_out, padding in zip(
        ids[::-1], batch.tgt_in, batch.tgt_out, batch.tgt_key_padding_mask, strict=True
    ):
        assert tgt_in[~padding].tolist() == [BOS, *row]
        assert tgt_out[~padding].tolist() == [*row, EOS]
        assert (tgt_in[padding] == PAD).all()
        assert (tgt_out[padding] == PAD).all()


@given(rows)
def test_the_decoder_is_asked_for_what_it_is_fed_one_step_later(ids: list[list[int]]) -> None:
    batch = collate(ids, ids)
    fed_next = batch.tgt_in[:, 1:]
    asked = batch.tgt_out[:, :-1]
    shown = fed_next != PAD
    assert torch.equal(fed_next[shown], asked[shown])


@given(rows)
def test_counts_agree_with_the_masks(ids: list[list[int]]) -> None:
    batch = collate(ids, ids)
    assert batch.n_tokens == sum(len(row) + 1 for row in ids)
    assert len(batch) == len(ids)
    real = 2 * batch.n_tokens
    assert batch.padding_share == 1 - real / (batch.src.numel() + batch.tgt_out.numel()) or np.isclose(
        batch.padding_share, 1 - real / (batch.src.numel() + batch.tgt_out.numel())
    )


@given(rows)
def test_a_gathered_rectangle_equals_a_padded_list(ids: list[list[int]]) -> None:
    flat = np.array(
        [99, *(i for row in ids for i in row)], np.uint16
    )  # a value before, which nobody asked for
    lengths = np.array([len(row) for row in ids])
    starts = 1 + np.cumsum(lengths) - lengths
    width = int(lengths.max())
    padded = [row + [PAD] * (width - len(row)) for row in ids]
    assert rectangle(flat, starts, lengths, width).tolist() == padded


def test_moving_a_batch_moves_every_tensor_and_keeps_the_counts() -> None:
    batch = collate([[5, 6], [7]], [[8], [9, 10, 11]])
    moved = batch.to("meta")
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 6
    assert all(tensor.is_meta for tensor in tensors)
    assert (moved.n_tokens, moved.padding_share) == (batch.n_tokens, batch.padding_share)
    assert not batch.src.is_meta


@given(rows, st.data())
def test_every_pair_can_be_read_back_from_a_packed_batch(ids: list[list[int]], data: st.DataObject) -> None:
    padded = collate(ids, ids[::-1])
    steps = data.draw(st.lists(st.integers(0, 1), min_size=len(ids) - 1, max_size=len(ids) - 1))
    where = np.cumsum([0, *steps])
    packed = pack(padded, where)
    assert packed.src_segments is not None
    assert packed.tgt_segments is not None
    numbers = [int((where[:i] == row).sum()) + 1 for i, row in enumerate(where)]  # of each pair in its row
    for i, (row, number) in enumerate(zip(where.tolist(), numbers, strict=True)):
        src, tgt = packed.src_segments[row] == number, packed.tgt_segments[row] == number
        assert packed.src[row, src].tolist() == [*ids[i], EOS]
        assert packed.tgt_in[row, tgt].tolist() == [BOS, *ids[-1 - i]]
        assert packed.tgt_out[row, tgt].tolist() == [*ids[-1 - i], EOS]
        assert packed.src_positions[row, src].tolist() == list(range(len(ids[i]) + 1))
        assert packed.tgt_positions[row, tgt].tolist() == list(range(len(ids[-1 - i]) + 1))
    assert (packed.n_tokens, len(packed)) == (padded.n_tokens, len(padded))
    assert torch.equal(packed.src_segments == 0, packed.src_key_padding_mask)
    assert (packed.src[packed.src_key_padding_mask] == PAD).all()
    assert packed.longest >= 1 + max(map(len, ids))


@given(rows)
def test_all_pairs_in_one_row_leave_no_padding_and_say_where_each_begins(ids: list[list[int]]) -> None:
    packed = pack(collate(ids, ids[::-1]), np.zeros(len(ids), np.int64))
    assert packed.padding_share == 0
    assert packed.src_starts.tolist() == np.cumsum([0, *(len(row) + 1 for row in ids)]).tolist()
    assert packed.tgt_starts.tolist() == np.cumsum([0, *(len(row) + 1 for row in ids[::-1])]).tolist()


@given(rows)
def test_places_are_those_of_the_real_targets(ids: list[list[int]]) -> None:
    batch = collate(ids, ids)
    assert torch.equal(batch.tgt_out.flatten()[batch.places], batch.tgt_out[~batch.tgt_key_padding_mask])


@given(rows)
def test_the_pairs_of_a_batch_are_those_it_was_made_of(ids: list[list[int]]) -> None:
    pairs = list(zip(ids, ids[::-1], strict=True))
    batch = collate(ids, ids[::-1])
    assert pairs_of(batch) == pairs
    assert pairs_of(pack(batch, np.arange(len(ids)) // 2)) == pairs

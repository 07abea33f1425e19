"""Padded batches and the shift of the target."""

import torch

from dragoman.data.collate import collate
from dragoman.special import BOS, EOS, PAD


def test_the_target_is_shifted_and_padded_on_the_right() -> None:
    batch = collate([[5, 6, 7], [8]], [[9], [4, 5]])
    assert batch.src.tolist() == [[5, 6, 7, EOS], [8, EOS, PAD, PAD]]
    assert batch.tgt_in.tolist() == [[BOS, 9, PAD], [BOS, 4, 5]]
    assert batch.tgt_out.tolist() == [[9, EOS, PAD], [4, 5, EOS]]
    assert batch.src.dtype == batch.tgt_in.dtype == torch.int64
    assert torch.equal(batch.src_key_padding_mask, batch.src == PAD)
    assert batch.tgt_out.flatten()[batch.tgt_indices].tolist() == [9, EOS, 4, 5, EOS]
    assert batch.n_tokens == 5


def test_few_shapes_pad_to_three_significant_bits() -> None:
    widths = [collate([[5] * n], [[5]], max_bucket=38).src.size(1) for n in (0, 6, 7, 8, 11, 12, 15, 16, 36)]
    assert widths == [1, 7, 8, 10, 12, 14, 16, 20, 38]


def test_empty_sentences_are_only_special_ids() -> None:
    batch = collate([[]], [[]])
    assert (batch.src.tolist(), batch.tgt_in.tolist(), batch.tgt_out.tolist()) == ([[EOS]], [[BOS]], [[EOS]])

"""Properties of attention under every position scheme (formulas: test_notes.py)."""

import itertools

import pytest
import torch

from dragoman.model.attention import Attention, causal_attn_mask, padding_attn_mask
from dragoman.model.position import POSITIONS
from dragoman.special import PAD

SOME = [("none", "dot"), ("rope", "scaled_dot"), ("t5", "additive"), ("transformer_xl", "scaled_dot")]


@torch.no_grad()
@pytest.mark.parametrize("kind", POSITIONS)
def test_the_fused_form_equals_the_formula(kind, attention):
    x = torch.randn(2, 5, 8)
    padding = padding_attn_mask(torch.tensor([[5, 5, 5, 0, 0], [5] * 5]) == PAD)
    for causal, attn_mask in itertools.product((True, False), (None, padding)):
        layer = attention(kind, causal=causal)
        layer.fused = True
        fused = layer(x, x, attn_mask, causal=causal)
        layer.fused = False
        formula = layer(x, x, attn_mask, causal=causal)
        torch.testing.assert_close(fused, formula, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "score"), SOME)
def test_the_weights_shown_are_the_weights_used(kind, score, attention):
    layer, x = attention(kind, score, causal=True), torch.randn(2, 5, 8)
    padding = padding_attn_mask(torch.tensor([[5, 5, 5, 0, 0], [5] * 5]) == PAD)
    values = layer.kv(x).chunk(2, -1)[1].unflatten(-1, (2, 4)).transpose(1, 2)
    weights = layer.weights(x, x, padding, causal=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 5))
    expected = layer.out((weights @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, x, padding, causal=True), expected, atol=1e-5, rtol=1e-5)


def test_relative_schemes_see_distances_only(attention):
    """Three masked tokens in front move all others by three positions."""
    x = torch.randn(1, 6, 8)

    def weights(layer: Attention, front: int) -> torch.Tensor:
        moved = torch.cat((torch.zeros(1, front, 8), x), 1)
        visible = (torch.arange(front + 6) >= front)[None, None, None]
        added = layer.position.embed(moved, torch.arange(front + 6))
        return layer.weights(added, added, visible)[:, :, front:, front:]

    layers = {kind: attention(kind) for kind in POSITIONS}
    same = [k for k, layer in layers.items() if torch.allclose(weights(layer, 0), weights(layer, 3), atol=1e-5)]
    assert same == ["none", "rope", "t5", "transformer_xl", "alibi"]


def test_a_causal_mask_for_new_queries_sees_the_whole_past():
    assert causal_attn_mask(1, 4).all()
    assert causal_attn_mask(2, 4)[0, 0].tolist() == [[True, True, True, False], [True, True, True, True]]


def test_alibi_does_not_round_long_distances_in_bf16(scheme):
    position, far = scheme("alibi", n_heads=3, d_model=12), torch.arange(1000)
    q = torch.zeros(1, 3, 1000, 4)
    exact, rounded = position.bias(q, q, far, far), position.bias(q.bfloat16(), q.bfloat16(), far, far)
    torch.testing.assert_close(rounded.float(), exact)


def test_attention_does_not_use_cudnn():
    """cuDNN makes a plan for each new shape of a batch."""
    assert not torch.backends.cuda.cudnn_sdp_enabled()

"""Scores against their formulas, and properties of attention under every position scheme."""

import itertools
import math

import pytest
import torch

from dragoman.masks import causal_attn_mask, key_padding_mask, padding_attn_mask
from dragoman.model.attention import SCORES, Attention
from dragoman.model.position import POSITIONS

SOME = [("none", "dot"), ("rope", "scaled_dot"), ("t5", "additive"), ("transformer_xl", "scaled_dot")]
some = pytest.mark.parametrize(("kind", "score"), SOME)


def dot(q: list[float], k: list[float], w: list[float]) -> float:
    return sum(a * b for a, b in zip(q, k, strict=True))


def scaled_dot(q: list[float], k: list[float], w: list[float]) -> float:
    return dot(q, k, w) / math.sqrt(len(q))


def additive(q: list[float], k: list[float], w: list[float]) -> float:
    return sum(c * math.tanh(a + b) for a, b, c in zip(q, k, w, strict=True))


@pytest.mark.parametrize("formula", [dot, scaled_dot, additive], ids=lambda f: f.__name__)
def test_a_score_is_the_papers_formula_pair_by_pair(formula):
    n_heads, d_head = 3, 4
    score = SCORES[formula.__name__](n_heads, d_head).double()
    q, k = torch.randn(2, n_heads, 5, d_head).double(), torch.randn(2, n_heads, 6, d_head).double()
    w = score.w if formula is additive else torch.zeros(n_heads, d_head)
    expected = [
        [
            [[formula(q_i, k_j, w[h].tolist()) for k_j in k[b, h].tolist()] for q_i in q[b, h].tolist()]
            for h in range(n_heads)
        ]
        for b in range(2)
    ]
    torch.testing.assert_close(score(q, k), torch.tensor(expected, dtype=torch.float64))


@torch.no_grad()
@pytest.mark.parametrize("kind", POSITIONS)
def test_the_fused_form_equals_the_formula(kind, attention):
    x = torch.randn(2, 5, 8)
    padding = padding_attn_mask(key_padding_mask(torch.tensor([[5, 5, 5, 0, 0], [5] * 5])))
    for causal, attn_mask in itertools.product((True, False), (None, padding)):
        layer = attention(kind, causal=causal)
        layer.fused = True
        fused = layer(x, x, attn_mask, causal=causal)
        layer.fused = False
        formula = layer(x, x, attn_mask, causal=causal)
        torch.testing.assert_close(fused, formula, atol=1e-5, rtol=1e-5)


@some
def test_the_weights_shown_are_the_weights_used(kind, score, attention):
    causal = True
    layer, x = attention(kind, score, causal=causal), torch.randn(2, 5, 8)
    padding = padding_attn_mask(key_padding_mask(torch.tensor([[5, 5, 5, 0, 0], [5] * 5])))
    values = layer.kv(x).chunk(2, -1)[1].unflatten(-1, (2, 4)).transpose(1, 2)
    weights = layer.weights(x, x, padding, causal=causal)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 5))
    expected = layer.out((weights @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, x, padding, causal=causal), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("fused", [True, False])
def test_a_masked_key_has_weight_0(fused, attention):
    layer, x = attention(), torch.randn(1, 4, 8)
    layer.fused = fused
    hidden = torch.tensor([True, True, False, True])[None, None, None]
    other = x.clone()
    other[:, 2] = 100.0
    outputs = [layer(x[:, :1], keys, hidden) for keys in (x, other)]
    torch.testing.assert_close(*outputs)


def test_relative_schemes_see_distances_only(attention):
    """Three tokens in front, which may not be attended to, move all others by three positions."""
    x = torch.randn(1, 6, 8)

    def weights(layer: Attention, front: int) -> torch.Tensor:
        moved = torch.cat((torch.zeros(1, front, 8), x), 1)
        visible = (torch.arange(front + 6) >= front)[None, None, None]
        added = layer.position.embed(moved, torch.arange(front + 6))
        return layer.weights(added, added, visible)[:, :, front:, front:]

    layers = {kind: attention(kind) for kind in POSITIONS}
    same = [k for k, layer in layers.items() if torch.allclose(weights(layer, 0), weights(layer, 3), atol=1e-5)]
    assert same == ["none", "rope", "t5", "transformer_xl", "alibi"]


@some
def test_bf16_is_near_and_has_finite_gradients(kind, score, attention):
    layer, x = attention(kind, score, causal=True), torch.randn(2, 6, 8)
    expected = layer(x, x, causal=True)
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x, x, causal=True)
    torch.testing.assert_close(output.float(), expected, atol=0.05, rtol=0.05)
    output.float().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


def test_a_causal_mask_for_new_queries_sees_the_whole_past():
    assert causal_attn_mask(1, 4).all()
    assert causal_attn_mask(2, 4)[0, 0].tolist() == [[True, True, True, False], [True, True, True, True]]


def test_alibi_does_not_round_long_distances_in_bf16(scheme):
    position, far = scheme("alibi", n_heads=3, d_model=12), torch.arange(1000)
    q = torch.zeros(1, 3, 1000, 4)
    exact, rounded = position.bias(q, q, far, far), position.bias(q.bfloat16(), q.bfloat16(), far, far)
    torch.testing.assert_close(rounded.float(), exact)

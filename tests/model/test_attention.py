"""Scores against their formulas, and what must hold for attention whatever the scheme of positions."""

import math

import pytest
import torch
from torch import Tensor

from dragoman.masks import causal_attn_mask, key_padding_mask, padding_attn_mask
from dragoman.model.attention import SCORES
from dragoman.model.position import POSITIONS
from networks import attention, scheme

EVERY = [(kind, score) for kind in POSITIONS for score in SCORES]


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


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize(("kind", "score"), EVERY)
def test_the_weights_shown_are_the_weights_used(kind, score, causal):
    layer = attention(kind, score, causal=causal)
    x = torch.randn(2, 5, 8)
    padding = padding_attn_mask(key_padding_mask(torch.tensor([[5, 5, 5, 0, 0], [5, 5, 5, 5, 5]])))
    values = layer.kv(x).chunk(2, -1)[1].unflatten(-1, (2, 4)).transpose(1, 2)
    for attn_mask in (None, padding):
        weights = layer.weights(x, x, attn_mask, causal=causal)
        torch.testing.assert_close(
            layer.out((weights @ values).transpose(1, 2).flatten(2)),
            layer(x, x, attn_mask, causal=causal),
            atol=1e-5,
            rtol=1e-5,
        )


@pytest.mark.parametrize(("kind", "score"), EVERY)
def test_weights_are_a_distribution_over_what_may_be_seen(kind, score):
    layer = attention(kind, score, causal=True)
    x = torch.randn(2, 5, 8)
    padding = key_padding_mask(torch.tensor([[5, 5, 5, 0, 0], [5, 5, 5, 5, 5]]))
    weights = layer.weights(x, x, padding_attn_mask(padding), causal=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 5))
    assert (weights.triu(1) == 0).all()
    assert (weights[0, :, :, 3:] == 0).all()
    assert (weights[1].tril() > 0).sum() == 2 * 15


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize(("kind", "score"), EVERY)
def test_sentences_packed_into_one_row_are_attended_to_as_if_each_had_its_own(kind, score, causal):
    """Positions (B, T) start again with each sentence; who belongs together is the mask's business."""
    layer = attention(kind, score, causal=causal)

    def attended(x: Tensor, positions: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        x = layer.position.embed(x, positions)
        return layer(x, x, attn_mask, causal=causal, positions=positions)

    first, second, third = torch.randn(3, 8), torch.randn(4, 8), torch.randn(7, 8)
    packed = torch.stack((torch.cat((first, second)), third))
    segments = torch.tensor([[1, 1, 1, 2, 2, 2, 2], [1] * 7])
    together = (segments[:, :, None] == segments[:, None, :])[:, None]  # (B, 1, T, T)
    found = attended(packed, torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6]]), together)
    for x, part in ((first, found[0, :3]), (second, found[0, 3:]), (third, found[1])):
        alone = attended(x[None], torch.arange(len(x)))[0]
        torch.testing.assert_close(part, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", POSITIONS)
def test_a_relative_scheme_knows_distances_only_and_an_absolute_one_places(kind):
    layer, x = attention(kind), torch.randn(2, 6, 8)

    def weights(places: Tensor) -> Tensor:
        added = layer.position.embed(x, places)
        return layer.weights(added, added, positions=places)

    places = torch.arange(6)
    moved = torch.allclose(weights(places), weights(places + 20), atol=1e-5)
    assert moved == (kind in ("none", "rope", "t5", "transformer_xl", "alibi"))
    if kind != "none":
        assert not torch.allclose(weights(places), weights(places * 3 % 6), atol=1e-4)


@pytest.mark.parametrize("kind", POSITIONS)
def test_without_being_told_positions_attention_counts_from_0(kind):
    layer, x = attention(kind, causal=True), torch.randn(2, 5, 8)
    counted = layer(x, x, causal=True, positions=torch.arange(5))
    assert torch.equal(layer(x, x, causal=True), counted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("kind", "score"), EVERY)
def test_mixed_precision_gives_nearly_the_same_and_finite_gradients(kind, score, dtype):
    layer = attention(kind, score, causal=True)
    x = torch.randn(2, 6, 8)
    expected = layer(x, x, causal=True)
    with torch.autocast("cpu", dtype):
        found = layer(x, x, causal=True)
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.05)
    found.float().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


def test_half_precision_does_not_round_long_distances():
    position = scheme("alibi", n_heads=3, d_model=12)
    far = torch.arange(1000)
    q = torch.zeros(1, 3, 1000, 4)
    exact, rounded = position.bias(q, q, far, far), position.bias(q.bfloat16(), q.bfloat16(), far, far)
    torch.testing.assert_close(rounded.float(), exact)


def test_a_causal_mask_for_new_queries_sees_the_whole_past():
    assert causal_attn_mask(1, 4).all()
    assert causal_attn_mask(2, 4)[0, 0].tolist() == [[True, True, True, False], [True, True, True, True]]

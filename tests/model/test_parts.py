"""Positions, dropout and attention weights, each by what defines it."""

import math

import pytest
import torch

from dragoman.masks import causal_attn_mask, key_padding_mask, padding_attn_mask
from dragoman.model.attention import Attention
from dragoman.model.dropout import Dropout
from dragoman.model.position import Position, PositionConfig, sinusoid


@pytest.mark.parametrize("base", [100.0, 10000.0])
def test_the_sinusoid_is_the_papers_formula_entry_by_entry(base):
    d_model = 8
    table = sinusoid(torch.arange(20), d_model, base)
    for pos in range(20):
        for i in range(d_model // 2):
            angle = pos / base ** (2 * i / d_model)
            assert table[pos, 2 * i] == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[pos, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-5)


def test_positions_may_restart_within_a_row():
    positions = torch.tensor([[0, 1, 2, 0, 1]])
    table = sinusoid(positions, 8, 10000.0)
    assert torch.equal(table[0, 3:], table[0, :2])


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_dropout_drops_the_share_it_says_and_keeps_the_expectation(p):
    torch.manual_seed(1)
    dropped = Dropout(p)(torch.ones(1_000_000))
    assert (dropped == 0).float().mean() == pytest.approx(p, abs=0.005)
    assert dropped.mean() == pytest.approx(1.0, abs=0.005)


def test_dropout_passes_gradients_exactly_where_it_passed_values():
    torch.manual_seed(1)
    x = torch.randn(1000, requires_grad=True)
    y = Dropout(0.4)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_dropout_repeats_with_the_seed():
    x = torch.randn(999)
    again = [(torch.manual_seed(7), Dropout(0.3)(x))[1] for _ in range(2)]
    assert torch.equal(*again)


def attention() -> Attention:
    torch.manual_seed(1)
    position = Position(PositionConfig(kind="none"), d_model=16, n_heads=2, causal=False)
    return Attention(16, 2, score="scaled_dot", dropout=0.0, position=position)


@pytest.mark.parametrize("causal", [True, False])
def test_the_weights_shown_are_the_weights_used(causal):
    layer = attention()
    x = torch.randn(2, 5, 16)
    weights = layer.weights(x, x, causal=causal)
    values = layer.kv(x).chunk(2, -1)[1].unflatten(-1, (2, 8)).transpose(1, 2)
    torch.testing.assert_close(
        layer.out((weights @ values).transpose(1, 2).flatten(2)),
        layer(x, x, causal=causal),
        atol=1e-5,
        rtol=1e-5,
    )


def test_weights_are_a_distribution_over_what_may_be_seen():
    layer = attention()
    x = torch.randn(2, 5, 16)
    padding = key_padding_mask(torch.tensor([[5, 5, 5, 0, 0], [5, 5, 5, 5, 5]]))
    weights = layer.weights(x, x, padding_attn_mask(padding), causal=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 5))
    assert (weights.triu(1) == 0).all()
    assert (weights[0, :, :, 3:] == 0).all()


def test_a_causal_mask_for_new_queries_sees_the_whole_past():
    assert causal_attn_mask(1, 4).all()
    assert causal_attn_mask(2, 4)[0, 0].tolist() == [[True, True, True, False], [True, True, True, True]]

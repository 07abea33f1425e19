"""Dropout by its definition."""

import pytest
import torch

from dragoman.model.transformer import Dropout


def test_dropout_drops_its_share_and_keeps_the_mean():
    torch.manual_seed(1)
    dropped = Dropout(0.3)(torch.ones(1_000_000))
    assert (dropped == 0).float().mean() == pytest.approx(0.3, abs=0.005)
    assert dropped.mean() == pytest.approx(1.0, abs=0.005)


def test_a_small_probability_drops_some_elements():
    torch.manual_seed(1)
    assert (Dropout(0.001)(torch.ones(10_000)) == 0).any()


def test_gradients_pass_where_values_passed():
    torch.manual_seed(1)
    x = torch.randn(1000, requires_grad=True)
    y = Dropout(0.4)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_dropout_repeats_with_the_seed():
    x = torch.randn(999)
    again = [(torch.manual_seed(7), Dropout(0.3)(x))[1] for _ in range(2)]
    assert torch.equal(*again)

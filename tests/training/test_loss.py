"""The chunked loss is cross-entropy, gradients and all."""

import pytest
import torch
from torch.nn import functional as F

from dragoman.training import loss as module
from dragoman.training.loss import projected_loss
from dragoman.training.schedule import SCHEDULES, learning_rate


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("n", [1, 511, 513, 1500])
def test_loss_and_gradients_equal_torchs(smoothing, n):
    torch.manual_seed(1)
    states = torch.randn(n, 16, requires_grad=True)
    weight = torch.randn(30, 16, requires_grad=True)
    targets = torch.randint(0, 30, (n,))
    logits = states.double() @ weight.double().t()  # torch's own answer, without rounding worth the name
    expected = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    expected_gradients = torch.autograd.grad(expected, (states, weight))
    found, nll = projected_loss(states, weight, targets, label_smoothing=smoothing)
    gradients = torch.autograd.grad(found, (states, weight))
    torch.testing.assert_close(found.double(), expected, atol=0, rtol=1e-6)
    plain = F.cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(nll.double(), plain, atol=0, rtol=1e-6)
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        # Sums of many terms that cancel: small entries are as exact as the large ones, not more.
        torch.testing.assert_close(mine, theirs, atol=1e-6 * float(theirs.abs().max()), rtol=1e-5)


def test_the_chunk_size_does_not_matter(monkeypatch):
    torch.manual_seed(1)
    states, weight, targets = torch.randn(100, 8), torch.randn(20, 8), torch.randint(0, 20, (100,))
    whole = projected_loss(states, weight, targets, label_smoothing=0.1)[0]
    monkeypatch.setitem(module.CHUNK, "cpu", 7)
    torch.testing.assert_close(projected_loss(states, weight, targets, label_smoothing=0.1)[0], whole)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_schedule_rises_to_its_peak_and_never_above(kind):
    rates = [learning_rate(kind, s, peak=0.5, warmup_steps=10, max_steps=100) for s in range(1, 101)]
    assert rates[9] == pytest.approx(0.5)
    assert max(rates) == pytest.approx(0.5)
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert min(rates) >= 0


def test_the_inverse_square_root_is_the_papers():
    """lrate = d^-0.5 min(step^-0.5, step warmup^-1.5), up to the peak's name for the constant."""
    warmup, peak = 40, 1e-3
    for step in (1, 20, 40, 41, 160, 1000):
        paper = min(step**-0.5, step * warmup**-1.5) * peak * warmup**0.5
        assert learning_rate(
            "inverse_sqrt", step, peak=peak, warmup_steps=warmup, max_steps=10
        ) == pytest.approx(paper)

"""Schedules, compared with their formulas, and properties of all optimizers."""

import pytest
import torch

from dragoman.config import TrainingConfig
from dragoman.training.module import OPTIMIZERS, SCHEDULES, learning_rate


def test_a_schedule_rises_to_its_peak_and_falls():
    for kind in SCHEDULES:
        rates = [learning_rate(kind, s, peak=0.5, warmup_steps=10, max_steps=100) for s in range(1, 101)]
        assert rates[9] == pytest.approx(0.5), kind
        assert rates[:10] == sorted(rates[:10]), kind
        assert rates[9:] == sorted(rates[9:], reverse=True), kind
        assert min(rates) >= 0, kind


def test_inverse_sqrt_is_the_papers():
    """lrate = d^-0.5 min(step^-0.5, step warmup^-1.5), with the peak for the constant."""
    warmup, peak = 40, 1e-3
    for step in (1, 20, 40, 41, 160, 1000):
        paper = min(step**-0.5, step * warmup**-1.5) * peak * warmup**0.5
        rate = learning_rate("inverse_sqrt", step, peak=peak, warmup_steps=warmup, max_steps=10)
        assert rate == pytest.approx(paper)


def test_cosine_falls_from_the_peak_to_zero():
    for step, share in ((10, 1.0), (55, 0.5), (100, 0.0), (200, 0.0)):
        rate = learning_rate("cosine", step, peak=0.4, warmup_steps=10, max_steps=100)
        assert rate == pytest.approx(0.4 * share, abs=1e-12)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_descends_and_leaves_what_has_no_gradient(kind):
    x, idle = torch.nn.Parameter(torch.ones(3, 3)), torch.nn.Parameter(torch.ones(3))
    groups = [{"params": [x], "weight_decay": 0.1}, {"params": [idle], "weight_decay": 0.1}]
    optimizer = OPTIMIZERS[kind](groups, TrainingConfig(lr=0.05), "32-true")
    for _ in range(5):
        optimizer.zero_grad()
        (x**2).sum().backward()
        optimizer.step()
    assert (x < 1).all()
    assert torch.equal(idle, torch.ones(3))

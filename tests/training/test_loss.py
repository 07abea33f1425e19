"""The chunked loss and its gradients, compared with torch's cross-entropy."""

import pytest
import torch
from torch.nn import functional as F

from dragoman.training.module import projected_loss


@pytest.mark.parametrize(("n", "smoothing"), [(1, 0.1), (1025, 0.1), (9, 0.0)])
def test_loss_and_gradients_equal_torchs(n, smoothing):
    torch.manual_seed(1)
    states = torch.randn(n, 16, requires_grad=True)
    weight = torch.randn(30, 16, requires_grad=True)
    targets = torch.randint(0, 30, (n,))
    logits = states.double() @ weight.double().t()
    expected = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    expected_gradients = torch.autograd.grad(expected, (states, weight))
    loss, nll = projected_loss(states, weight, targets, label_smoothing=smoothing)
    gradients = torch.autograd.grad(loss, (states, weight))
    torch.testing.assert_close(loss.double(), expected, atol=0, rtol=1e-6)
    plain = F.cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(nll.double(), plain, atol=0, rtol=1e-6)
    for ours, torchs in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(ours, torchs, atol=1e-6 * float(torchs.abs().max()), rtol=1e-5)


def test_bf16_loss_is_near_the_exact_one():
    torch.manual_seed(1)
    weight, targets = torch.randn(20, 64, requires_grad=True), torch.randint(0, 20, (1100,))
    for certainty in (0.0, 0.1):  # at 0.1 the model is nearly sure of every target
        states = (torch.randn(1100, 64) * 0.1 + certainty * weight[targets]).detach().requires_grad_()
        exact = projected_loss(states, weight, targets, label_smoothing=0.0)[0]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = projected_loss(states, weight, targets, label_smoothing=0.0)[0]
        torch.testing.assert_close(loss, exact, atol=0, rtol=1e-2)
        gradients = (torch.autograd.grad(each, (states, weight)) for each in (loss, exact))
        for near, gradient in zip(*gradients, strict=True):
            assert near.dtype == torch.float32
            assert (near - gradient).norm() < 0.02 * gradient.norm()

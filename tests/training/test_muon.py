"""Muon, compared with its formula."""

import torch

from dragoman.training.muon import Muon, orthogonalize


def test_singular_values_move_to_one():
    u, _, v = torch.linalg.svd(torch.randn(2, 6, 9), full_matrices=False)
    values = torch.tensor([[5.0, 3, 2, 1, 0.5, 0.2], [1.0, 1, 1, 1, 1, 0]])
    moved = u.mT @ orthogonalize(u * values[:, None] @ v) @ v.mT  # diagonal again, because singular vectors stay
    torch.testing.assert_close(moved, torch.diag_embed(moved.diagonal(dim1=1, dim2=2)), atol=1e-4, rtol=0)
    assert ((moved.diagonal(dim1=1, dim2=2) - 0.94).abs() < 0.27).eq(values > 0).all()


def test_two_steps_are_the_formula():
    rate, decay, gradients = 0.1, 0.5, torch.randn(2, 128, 32)
    p = torch.nn.Parameter(torch.ones(32, 128))  # wide, so its columns are divided
    optimizer = Muon([{"params": [p], "weight_decay": decay}, {"params": []}], bf16=False, lr=rate)
    expected, momentum = torch.ones(128, 32), torch.zeros(128, 32)
    for gradient in gradients:
        direction = 0.1 * gradient + 0.9 * (momentum := 0.9 * momentum + 0.1 * gradient)
        update = torch.cat([orthogonalize(half[None])[0] for half in direction.split(64)])
        expected = expected * (1 - rate * decay) - rate * 0.2 * 64**0.5 * update
        p.grad = gradient.mT
        optimizer.step()
    torch.testing.assert_close(p.data.mT, expected)

"""Muon (Jordan et al. 2024), an optimizer for matrices."""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_ROWS, _N_ITERATIONS = 64, 3
_A, _B, _C = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.AdamW):
    """Muon for the first parameter group, the layers' matrices; AdamW for the rest.

    Muon's update is the momentum of the gradient, its singular values moved to about 1: rare directions are learnt as
    fast as frequent ones. It is scaled to an AdamW update's size, 0.2 for each weight, so that learning rate and
    weight decay mean the same for both (Liu et al. 2025). A matrix is divided into blocks of 64 rows, about a head
    each. The products then take a quarter of the time, and most of the gain remains.
    """

    def __init__(self, groups: list[dict[str, Any]], *, bf16: bool, **adamw: Any) -> None:
        super().__init__(groups, **adamw)
        self.dtype = torch.bfloat16 if bf16 else torch.float32  # of the products

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        bad = getattr(self, "found_inf", torch.tensor(0.0))  # 1: the gradient is not finite, and nothing may change
        group = self.param_groups[0]
        rate, beta1, blocks = group["lr"] * (1 - bad), group["betas"][0], defaultdict(list)
        for p in group["params"]:
            if p.grad is None:
                continue
            if p not in self.state:  # AdamW expects a "step" in each state that it loads
                self.state[p] = {"step": torch.zeros(()), "momentum": torch.zeros_like(p)}
            momentum = self.state[p]["momentum"]
            gradient = torch.where(bad > 0, momentum, p.grad)
            direction = gradient.lerp(momentum.lerp_(gradient, 1 - beta1), beta1)  # Nesterov's
            p.grad = None  # AdamW leaves p out
            # The longer side first; the weight is a view of p.
            weight, direction = (x if len(p) >= p.size(1) else x.mT for x in (p, direction))
            blocks[math.gcd(len(weight), _ROWS), weight.size(1)].append((weight, direction))
        for shape, pairs in blocks.items():
            directions = [direction.reshape(-1, *shape) for _, direction in pairs]
            updates = orthogonal(torch.cat(directions).to(self.dtype)).split([len(each) for each in directions])
            for (weight, _), update in zip(pairs, updates, strict=True):
                weight *= 1 - rate * group["weight_decay"]
                weight -= update.reshape(weight.shape) * (rate * 0.2 * math.sqrt(max(shape)))
        super().step()
        return loss


def orthogonal(x: Tensor) -> Tensor:
    """Move the singular values of the matrices (N, m, n) towards 1.

    Each Newton-Schulz iteration applies a s + b s^3 + c s^5 to all values s at once. With Jordan's constants three of
    them move values from 0.02 to 1, in units of the matrix's norm, to between 0.68 and 1.2.
    """
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_N_ITERATIONS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=_B, alpha=_C), x, beta=_A)
    return x

"""Muon, an optimizer for matrices (https://kellerjordan.github.io/posts/muon)."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_ROWS, _N_ITERATIONS = 64, 3
_A, _B, _C = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.AdamW):
    """Muon for the first parameter group, the layers' matrices; AdamW for the rest.

    Muon's update is the momentum with its singular values moved to about 1: directions with small gradients are learnt
    as fast as those with large ones. Its root mean square is nearly 0.2, like that of an AdamW update, so that learning
    rate and weight decay mean the same for both (Liu et al. 2025, "Muon is Scalable for LLM Training"). To save time, a
    matrix is cut along its longer side into blocks of at most 64 rows, each treated as a matrix of its own.
    """

    def __init__(self, groups: list[dict[str, Any]], *, bf16: bool, **adamw: Any) -> None:
        super().__init__(groups, **adamw)
        self.dtype = torch.bfloat16 if bf16 else torch.float32  # of the products

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        bad = getattr(self, "found_inf", torch.tensor(0.0))  # 1 if a gradient is not finite: the step is skipped
        group = self.param_groups[0]
        rate, beta1 = group["lr"] * (1 - bad), group["betas"][0]
        for p in group["params"]:
            if p.grad is None:
                continue
            if p not in self.state:  # AdamW expects a "step" in each state that it loads
                self.state[p] = {"step": torch.zeros(()), "momentum": torch.zeros_like(p)}
            momentum = self.state[p]["momentum"]
            gradient = torch.where(bad > 0, momentum, p.grad)
            direction = gradient.lerp(momentum.lerp_(gradient, 1 - beta1), beta1)  # Nesterov's
            p.grad = None  # AdamW leaves p out
            # Transposed if wide. `weight` is a view, so p changes in place.
            weight, direction = (x if len(p) >= p.size(1) else x.mT for x in (p, direction))
            rows, columns = next(n for n in range(_ROWS, 0, -1) if len(weight) % n == 0), weight.size(1)
            update = orthogonalize(direction.reshape(-1, rows, columns).to(self.dtype)).reshape(weight.shape)
            weight *= 1 - rate * group["weight_decay"]
            weight -= update * (rate * 0.2 * math.sqrt(max(rows, columns)))
        super().step()
        return loss


def orthogonalize(x: Tensor) -> Tensor:
    """Return the matrices (N, m, n) with singular values moved towards 1.

    A Newton-Schulz iteration maps each singular value s to a s + b s^3 + c s^5. After three, values from 0.02 to 1
    (relative to the matrix's Frobenius norm) lie between 0.68 and 1.2. a, b and c: Jordan et al. 2024.
    """
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_N_ITERATIONS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=_B, alpha=_C), x, beta=_A)
    return x

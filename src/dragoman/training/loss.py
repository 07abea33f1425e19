"""Label-smoothed cross-entropy without the (tokens x vocabulary) matrix of logits.

That matrix is by far the largest tensor of a training step. Here projection, softmax and gradient are computed for 512
positions at a time (8,192 on a GPU), the gradient already in the forward pass, and only the gradients of the states (n,
D) and of the projection (V, D) are kept. The loss is the same to rounding.
"""

import torch
from torch import Tensor


class _ProjectedLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx,
        states: Tensor,
        weight: Tensor,
        targets: Tensor,
        label_smoothing: float,
        dtype: torch.dtype,
        with_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        chunk = 512 if states.device.type == "cpu" else 8192  # a GPU prefers few large products
        vocab_size = weight.size(0)
        cast_weight, cast_states = weight.to(dtype), states.to(dtype)
        states_gradient = torch.empty_like(cast_states)
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        loss, nll = (torch.zeros((), device=states.device) for _ in range(2))
        for start in range(0, states.size(0), chunk):
            x, y = cast_states[start : start + chunk], targets[start : start + chunk, None]
            log_p = (x @ cast_weight.t()).float().log_softmax(dim=-1)  # (c, V)
            token_nll = -log_p.gather(1, y)  # (c, 1)
            nll += token_nll.sum()
            # smoothing spreads its mass evenly over the vocabulary: (1 - s) * -log p(y) + s * mean(-log p)
            loss += ((1 - label_smoothing) * token_nll - label_smoothing * log_p.mean(-1, keepdim=True)).sum()
            if not with_gradient:
                continue
            gradient = log_p.exp_().sub_(label_smoothing / vocab_size)  # d loss / d logits
            gradient.scatter_add_(1, y, gradient.new_full(y.shape, label_smoothing - 1))
            gradient = gradient.to(dtype)
            torch.mm(gradient, cast_weight, out=states_gradient[start : start + chunk])
            if dtype == weight_gradient.dtype:
                weight_gradient.addmm_(gradient.t(), x)
            else:
                weight_gradient += gradient.t() @ x
        ctx.save_for_backward(states_gradient.to(states.dtype), weight_gradient.to(weight.dtype))
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx, outer: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        states_gradient, weight_gradient = ctx.saved_tensors
        return states_gradient * outer, weight_gradient * outer, None, None, None, None


def projected_loss(
    states: Tensor, weight: Tensor, targets: Tensor, *, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """states (n, D), weight (V, D), targets (n,) -> summed smoothed loss and nll.

    Products run in bf16 under autocast to bf16, else in fp32. Sums are over positions, in nats; divide by the number
    of target tokens for the loss, and exponentiate the plain mean for perplexity. Smoothing: Szegedy et al. 2016.
    """
    device = states.device.type
    bf16 = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16
    dtype, with_gradient = torch.bfloat16 if bf16 else torch.float32, torch.is_grad_enabled()
    with torch.autocast(device, enabled=False):
        return _ProjectedLoss.apply(states.float(), weight, targets, label_smoothing, dtype, with_gradient)

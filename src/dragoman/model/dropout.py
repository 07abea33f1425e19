"""Dropout with fast masks on a CPU.

torch draws one double per element on one thread. This module draws one byte per element, eight at a time, from
torch's own seeded generator, so runs are reproducible. The probability is rounded to a multiple of 1/256, not 0 (0.3
becomes 77/256), and the scale uses the rounded value. Other devices use torch's dropout.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, dropped: int) -> Tensor:  # type: ignore[no-untyped-def]
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        keep = words.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
        ctx.save_for_backward(keep)
        ctx.scale = 256 / (256 - dropped)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        (keep,) = ctx.saved_tensors
        return (gradient * keep).mul_(ctx.scale), None


class Dropout(nn.Module):
    """In training, zero elements with probability p; scale the rest by 1 / (1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            return _ByteDropout.apply(x, max(1, round(self.p * 256)))
        return F.dropout(x, self.p)

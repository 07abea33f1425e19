"""Training loop in plain torch, for models that are trained in minutes."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from dragoman.data.collate import Batch
from dragoman.special import PAD


def train(
    model: nn.Module, batches: Iterable[Batch], rate: Callable[[int], float], label_smoothing: float = 0.0, **adamw: Any
) -> list[float]:
    """Train one step per batch, rate(1) first; return the losses per target token."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), fused=True, **adamw)
    losses = []
    for step, batch in enumerate(batches, start=1):
        optimizer.param_groups[0]["lr"] = rate(step)
        logits, targets = model(batch.src, batch.tgt_in, batch.src_key_padding_mask), batch.tgt_out.flatten()
        loss = F.cross_entropy(logits.flatten(0, 1), targets, ignore_index=PAD, label_smoothing=label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses

"""Optimizers and learning-rate schedules, each a row of a registry.

A schedule is a function of the step alone: a resumed run has nothing to restore.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from dragoman.config import TrainingConfig

# name -> (step from 1, warmup_steps, max_steps) -> fraction of the peak
SCHEDULES: dict[str, Callable[[int, int, float], float]] = {
    "inverse_sqrt": lambda step, warmup, _: math.sqrt(warmup / max(step, warmup)),
    "cosine": lambda step, warmup, last: 0.5 * (1 + math.cos(math.pi * _progress(step, warmup, last))),
    "constant": lambda step, warmup, _: 1.0,
}

# name -> (parameter groups with their weight_decay, settings, whether a fused step is wanted) -> optimizer
OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]], TrainingConfig, bool], Optimizer]] = {
    "adamw": lambda groups, c, fused: torch.optim.AdamW(
        groups, lr=c.lr, betas=(c.beta1, c.beta2), eps=1e-9, fused=fused
    ),
    "sgd": lambda groups, c, fused: torch.optim.SGD(groups, lr=c.lr, momentum=c.beta1, fused=fused),
    "adafactor": lambda groups, c, _: torch.optim.Adafactor(groups, lr=c.lr),
}


def _progress(step: int, warmup: int, last: float) -> float:
    return min(1.0, max(0, step - warmup) / max(1, last - warmup))


def learning_rate(kind: str, step: int, *, peak: float, warmup_steps: int, max_steps: float) -> float:
    """Return the rate of a step (from 1): linear rise to `peak`, then schedule.

    "inverse_sqrt" is Vaswani et al. 2017, section 5.3, written with its peak; "cosine" reaches 0 at `max_steps`; while
    that is infinite (not planned yet), it stays at its peak.
    """
    warmup_steps = max(1, warmup_steps)
    return peak * min(1.0, step / warmup_steps) * SCHEDULES[kind](step, warmup_steps, max_steps)

"""The learning rate as a function of the step: no state, so nothing to save and nothing to get wrong on resume."""

import math
from collections.abc import Callable

# each: (step from 1, warmup_steps, max_steps) -> fraction of the peak
SCHEDULES: dict[str, Callable[[int, int, int], float]] = {
    "inverse_sqrt": lambda step, warmup, _: math.sqrt(warmup / max(step, warmup)),
    "cosine": lambda step, warmup, last: 0.5 * (1 + math.cos(math.pi * _done(step, warmup, last))),
    "constant": lambda step, warmup, _: 1.0,
}


def _done(step: int, warmup: int, last: int) -> float:
    return min(1.0, max(0, step - warmup) / max(1, last - warmup))


def learning_rate(kind: str, step: int, *, peak: float, warmup_steps: int, max_steps: int) -> float:
    """The rate for optimizer step `step` (the first is 1): a straight rise to `peak`, then the schedule's own way.

    "inverse_sqrt" is the paper's (section 5.3) written with its peak; "cosine" reaches 0 at `max_steps`.
    """
    warmup_steps = max(1, warmup_steps)
    return peak * min(1.0, step / warmup_steps) * SCHEDULES[kind](step, warmup_steps, max_steps)

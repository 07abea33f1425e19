"""Automatic settings (recipe=auto): a value for every null of a configuration.

The choices depend on corpus, time and hardware, above all on how often the corpus fits into the time. A model that
reads its corpus five times needs speed and little regularisation; one that reads it fifty times overfits without
dropout and weight decay.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from dragoman.config import Config
from dragoman.data.datamodule import TranslationData
from dragoman.files import shipped

# Target tokens per second to expect, for an estimate of the epochs; the schedule uses the measured pace.
SPEED = {"cpu": 4_000, "gpu": 200_000}
# Target tokens for each position of a batch; the rest is padding.
FILLED = 0.8


@dataclass
class Facts:
    """Inputs of the rules: configuration, corpus and hardware."""

    config: Config
    n_pairs: int  # per epoch
    n_tokens: int  # target tokens per epoch
    gpu: bool

    @property
    def minutes(self) -> float:
        """Time for training, estimated if only the number of steps is given."""
        c, speed = self.config.trainer, SPEED["gpu" if self.gpu else "cpu"]
        seconds = [float("inf") if c.max_seconds is None else c.max_seconds]
        if c.max_steps is not None:
            seconds.append(c.max_steps * FILLED * (self.config.data.max_tokens or 1024) / speed)
        return min(seconds) / 60

    @property
    def total(self) -> float:
        """Target tokens that fit into the time."""
        return self.minutes * 60 * SPEED["gpu" if self.gpu else "cpu"]

    @property
    def epochs(self) -> float:
        """How often the corpus fits into the time."""
        return self.total / self.n_tokens

    @property
    def n_steps(self) -> float:
        """Optimizer steps that fit into the time."""
        return min(self.config.trainer.max_steps or float("inf"), self.total / (FILLED * self.config.data.max_tokens))


def size(name: str) -> dict[str, int]:
    """Read a model size of configs/model, such as small."""
    return yaml.safe_load((shipped("configs") / "model" / f"{name}.yaml").read_text(encoding="utf-8"))


def _size(facts: Facts) -> tuple[dict[str, Any], str]:
    name = "base" if facts.gpu and facts.n_pairs >= 200_000 else "small"
    return {f"model.{key}": value for key, value in size(name).items()}, f"{facts.n_pairs:,} pairs"


def _batch(facts: Facts) -> tuple[dict[str, Any], str]:
    lowest, highest, steps = (4096, 16_384, 20_000) if facts.gpu else (768, 4096, 4_000)
    tokens = min(highest, max(lowest, round(facts.total / FILLED / steps / 256) * 256))
    return {"data.max_tokens": max(tokens, facts.config.data.longest)}, f"{steps:,} steps or more, if they fit"


def _dropout(facts: Facts) -> tuple[dict[str, Any], str]:
    value = 0.0 if facts.epochs < 4 else 0.05 if facts.epochs < 8 else 0.2 if facts.epochs < 25 else 0.3
    reason = f"about {facts.epochs:,.0f} epochs fit into {facts.minutes:,.0f} minutes"
    return {"model.dropout": value, "model.activation_dropout": 0.0 if value < 0.3 else 0.1}, reason


def _decay(facts: Facts) -> tuple[dict[str, Any], str]:
    return {"training.weight_decay": 0.01 if facts.epochs < 8 else 0.1}, "grows with the number of epochs"


def _rate(facts: Facts) -> tuple[dict[str, Any], str]:
    if facts.config.init_from:
        return {"training.lr": 3e-4, "training.warmup_steps": 100}, "the model is trained already"
    warmup = round(min(2_000, max(100, facts.n_steps / 10)))
    return {"training.lr": 0.384 / facts.config.model.d_model, "training.warmup_steps": warmup}, "by the width"


def _average(facts: Facts) -> tuple[dict[str, Any], str]:
    decay = round(min(0.999, max(0.9, 1 - 20 / facts.n_steps)), 4)
    return {"training.ema": decay}, "over the last twentieth of the steps"


# In this order: a later rule reads the values of earlier ones.
RULES: list[Callable[[Facts], tuple[dict[str, Any], str]]] = [_size, _batch, _dropout, _decay, _rate, _average]


def complete(config: Config, data: TranslationData, chosen: dict[str, Any]) -> tuple[Config, dict[str, Any], list[str]]:
    """Replace every null that has a rule.

    `chosen` are the values of an earlier start of the run; they stay as they are. Returns the configuration, all values
    chosen, and a line for each rule.
    """
    gpu, lines, chosen = config.trainer.accelerator != "cpu", [], dict(chosen)
    n_tokens = int(data.lengths[1].sum())
    for rule in RULES:
        values, reason = rule(Facts(config, data.train_size, n_tokens, gpu))
        missing = {key: chosen.get(key, value) for key, value in values.items() if _get(config, key) is None}
        for section in {key.partition(".")[0] for key in missing}:
            new = {key.partition(".")[2]: value for key, value in missing.items() if key.startswith(f"{section}.")}
            config = dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **new)})
        if missing:
            lines.append(f"{' '.join(f'{key}={value:g}' for key, value in missing.items())} ({reason})")
        chosen |= missing
    return config, chosen, lines


def _get(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)

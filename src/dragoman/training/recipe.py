"""Automatic settings (recipe=auto): a value for every null that has a rule.

The choices depend on corpus, time and hardware, mostly on how many epochs fit into the time. A model that
reads its corpus five times needs speed and little regularisation; one that reads it fifty times overfits without
dropout and weight decay.
"""

import math
from dataclasses import replace
from operator import attrgetter
from typing import Any

import yaml

from dragoman.config import Config
from dragoman.data.datamodule import TranslationData
from dragoman.files import included
from dragoman.training.progress import report

# Target tokens per second to expect (CPU: model=small), to estimate the epochs; the schedule uses the measured pace.
SPEED = {"cpu": 4_000, "gpu": 200_000}
WORK = 5_505_024  # multiplications of model=small's layers for one source and one target token
FILLED = 0.8  # expected share of target tokens in a batch; the rest is padding


def size(name: str) -> dict[str, int]:
    """Return the settings of a size in configs/model, such as small."""
    return yaml.safe_load((included("configs") / "model" / f"{name}.yaml").read_text(encoding="utf-8"))


def complete(config: Config, data: TranslationData, chosen: dict[str, Any]) -> Config:
    """Return `config` with a value for each null that has a rule, and print them.

    `chosen` are the values of an earlier start of the run; they stay as they are, and new ones are added.
    """

    def fill(reason: str, values: dict[str, Any]) -> None:
        nonlocal config
        missing = [key for key in values if attrgetter(key)(config) is None]
        reason = "kept from the first start" if chosen.keys() >= set(missing) else reason
        for key in missing:
            section, name = key.split(".")
            value = chosen.setdefault(key, values[key])
            config = replace(config, **{section: replace(getattr(config, section), **{name: value})})
        if missing:
            report(f"{' '.join(f'{key}={chosen[key]:g}' for key in missing)} ({reason})")

    gpu, n_pairs = config.trainer.accelerator != "cpu", data.train_size
    n_processes = config.trainer.devices * config.trainer.nodes
    n_batches = n_processes * config.training.accumulate  # of an optimizer step
    speed = SPEED["gpu"] * n_processes if gpu else SPEED["cpu"]
    name = "base" if gpu and n_pairs >= 200_000 else "small"
    few = "; experiment=adapt, which starts from a trained model, needs fewer" if n_pairs < 10_000 else ""
    fill(f"{n_pairs:,} pairs{few}", {f"model.{key}": value for key, value in size(name).items()})

    m = config.model
    layers = (m.n_encoder_layers, 4), (m.n_decoder_layers, 8)  # how many, and their projections of attention
    work = sum(n * m.d_model * (k * m.d_model + 2 * m.d_ff) for n, k in layers)
    if not gpu and work > WORK:
        speed = round(speed * (WORK / work) ** 0.75)  # large products are faster (scripts/README.md, base model)

    lowest, highest, steps = (4096, 16_384, 20_000) if gpu else (768, 4096, 2_000)
    n_tokens = _tokens(config, speed, n_batches)
    tokens = min(highest, max(lowest, round(n_tokens / FILLED / steps / n_batches / 256) * 256))
    fill(f"for at least {steps:,} steps, if they fit", {"data.max_tokens": max(tokens, config.data.longest)})

    n_tokens = _tokens(config, speed, n_batches)  # again, because the size of a batch is known now
    epochs = n_tokens / int(data.lengths[1].sum())
    dropout = 0.0 if epochs < 4 else 0.05 if epochs < 8 else 0.2 if epochs < 25 else 0.3
    dropouts = {"model.dropout": dropout, "model.activation_dropout": 0.0 if dropout < 0.3 else 0.1}
    fill(f"about {epochs:,.1f} epochs fit into {n_tokens / speed / 60:,.0f} min", dropouts)
    fill("grows with the number of epochs", {"training.weight_decay": 0.01 if epochs < 8 else 0.1})
    n_steps = min(config.trainer.max_steps or math.inf, n_tokens / (FILLED * config.data.max_tokens * n_batches))
    warmup = round(min(2_000, max(100, n_steps / 10)))
    if config.init_from:
        fill("the model is trained already", {"training.lr": 3e-4, "training.warmup_steps": 100})
    rate = (0.768 if config.training.optimizer == "muon" else 0.384) / config.model.d_model
    fill("by width and steps", {"training.lr": rate, "training.warmup_steps": warmup})
    decay = round(min(0.999, max(0.9, 1 - 20 / n_steps)), 4)
    fill("over the last twentieth of the steps", {"training.ema": decay})
    return config


def _tokens(config: Config, speed: int, n_batches: int) -> float:
    """Return the target tokens of the whole run, with `n_batches` batches a step."""
    c = config.trainer
    by_steps = (c.max_steps or math.inf) * FILLED * (config.data.max_tokens or 1024) * n_batches
    return min(by_steps, (c.max_seconds or math.inf) * speed)

"""Preflight: time and memory of a run, estimated before it (preflight=true).

The run's own trainer takes a few optimizer steps, the first of them on the longest batches, and validates once; the
rest is a multiplication. All of it happens in a temporary folder. Saving is not counted.
"""

import dataclasses
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback

from dragoman.config import Config, SearchConfig, TrainerConfig
from dragoman.explain.cost import cost_table
from dragoman.special import EOS
from dragoman.training.fit import adapted, announce, make_module, make_trainer, prepare_data, resolve
from dragoman.training.machine import configure_memory, peak_memory
from dragoman.training.progress import ProgressCallback
from dragoman.training.run import quiet
from dragoman.training.validation import ValidationCallback

STEPS = 20  # timed
WARM_UP = 10  # before them: the longest batches come first, memory is allocated, torch.compile compiles


def preflight(config: Config) -> None:
    """Print size, computed cost, measured speed, time and memory of the run."""
    configure_memory()
    config = resolve(adapted(config))
    with tempfile.TemporaryDirectory(prefix="dragoman-preflight-") as name:
        quiet(Path(name))
        config, data = prepare_data(config, Path(name), {})
        ends: list[float] = []  # when each batch ended

        def note(trainer: Trainer, module: Any, *_: Any) -> None:
            float(module.sums[0])  # waits for a GPU
            ends.append(time.monotonic())

        watch = LambdaCallback(on_train_batch_end=note)
        module = make_module(config, data, ProgressCallback(config.trainer))
        validation = ValidationCallback(data, config, module, report=lambda line: None)
        # Translations of an untrained model end at their limits: here as long as their sources.
        validation.search = SearchConfig(kind="greedy", max_length_a=1, max_length_b=1)
        n = WARM_UP + STEPS
        c = dataclasses.replace(config.trainer, max_steps=n, validate_every=n + 1, loggers=[])
        trainer = make_trainer(dataclasses.replace(config, trainer=c), Path(name), [validation, watch], 0)
        announce(f"preflight of {config.run_dir}", data, module, trainer)
        if trainer.is_global_zero:
            print(cost_table(module.model, data.plan.shapes))
        trainer.fit(module, datamodule=data)
        with torch.no_grad():
            module.best_model.projection.weight[EOS] = 0
        begin = time.monotonic()
        trainer.validate(module, datamodule=data, verbose=False)
        per_validation = time.monotonic() - begin
        if trainer.is_global_zero:
            n_batches = trainer.accumulate_grad_batches
            seconds = (ends[-1] - ends[WARM_UP * n_batches - 1]) / STEPS
            tokens = data.plan.shapes[:, 3].mean() * n_batches * trainer.world_size
            print(f"a step: {seconds:.3f} seconds, {tokens:,.0f} target tokens, {tokens / seconds:,.0f} tokens/s")
            print(f"a validation: {per_validation:.1f} seconds, {len(validation.pairs):,} translations")
            print(forecast(config.trainer, seconds, per_validation))
            print(f"peak memory: {peak_memory(config.trainer.accelerator) / 1e9:.2f} GB")


def forecast(trainer: TrainerConfig, step_seconds: float, validation_seconds: float) -> str:
    """Return the time of a run at this pace, or its steps within trainer.max_time."""
    fitting = (trainer.max_seconds or 0) / (step_seconds + validation_seconds / trainer.validate_every)
    limit = f"trainer.max_time={trainer.max_time} ends the run after about {fitting:,.0f} steps"
    if trainer.max_steps is None:
        return limit
    n_validations = math.ceil(trainer.max_steps / trainer.validate_every)
    total = trainer.max_steps * step_seconds + n_validations * validation_seconds
    line = f"{trainer.max_steps:,} steps and {n_validations:,} validations: about {total / 60:,.1f} minutes"
    return line if trainer.max_seconds is None or total <= trainer.max_seconds else f"{line}; {limit}"

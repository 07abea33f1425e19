"""What a run will cost, found out before it: `preflight(config)`.

The table of cost.py is arithmetic; seconds are not. So the run's own trainer takes the run's own optimizer steps, a
few typical ones and a few of the longest batch, and validates; the rest is a multiplication. It happens in a folder
that is thrown away: the run's own folder is neither made nor changed, only the data cache stays.

Counted: fetching batches, forward, loss, backward, clipping, optimizer, moving average; at each validation the loss,
translations, scores and pictures. The translations are made as long as their references: a model that knows nothing
does not know where to end. Not counted: saving. It refuses nothing that a run would accept.
"""

import dataclasses
import math
import shutil
import tempfile
import time
from itertools import cycle, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from dragoman.data.batching import Planner
from dragoman.data.datamodule import TranslationData
from dragoman.data.stream import BatchStream
from dragoman.search.search import SearchConfig
from dragoman.special import EOS
from dragoman.training.fit import module_for, prepare, tell_start
from dragoman.training.machine import forget_peak_memory, peak_memory
from dragoman.training.quality import Quality
from dragoman.training.run import quiet
from dragoman.training.trainer import TrainerConfig, resolved, trainer_for

if TYPE_CHECKING:
    from dragoman.config import Config

STEPS = 20  # timed, of each kind
WARM_UP = 3  # before them, not timed: memory is still being asked for, torch.compile compiles


def preflight(config: "Config") -> None:
    """Print what the run is, what it costs on paper, how fast it is here, and how long and how much it will take."""
    config = resolved(config)
    with tempfile.TemporaryDirectory(prefix="dragoman-preflight-") as name:
        folder = Path(name)
        known, begun = (Path(config.run_dir) / file for file in ("data.json", "metrics.json"))
        if known.exists() and begun.exists():  # the run stays with its corpora, and may not need the hub
            shutil.copy(known, folder)
        quiet(folder)
        n_batches = (WARM_UP + STEPS) * config.training.accumulate
        data = _Trial(config.data, folder, config.seed, n_batches=n_batches)
        prepare(config, data)
        forget_peak_memory()
        before = peak_memory("cpu")
        module = module_for(config, data, {}, new=False)  # what is in its weights costs nothing
        n_steps = 2 * (WARM_UP + STEPS)
        short = dataclasses.replace(config.trainer, max_steps=n_steps, validate_every=n_steps + 1)
        quality, watch = _quality(config, data), _Stopwatch()
        trainer = trainer_for(dataclasses.replace(config, trainer=short), folder, [quality, watch], 0)
        tell_start(config, data, module.model, trainer, f"preflight of {config.run_dir}")
        trainer.fit(module, datamodule=data)
        with torch.no_grad():  # <EOS> is never the likeliest now: translations end at their limits
            module.best_model.projection.weight[EOS] = 0
        for _ in range(2):  # the first time much is loaded
            trainer.validate(module, datamodule=data, verbose=False)
        if trainer.is_global_zero:
            print("\n".join(_report(config, watch, quality, before)))


class _Trial(TranslationData):
    """The run's data, but its stream holds `n_batches` typical batches and then the longest one as often."""

    def __init__(self, *of_the_run: Any, n_batches: int) -> None:
        super().__init__(*of_the_run)
        self.n_batches = n_batches

    def train_dataloader(self) -> BatchStream:
        stream = super().train_dataloader()
        return dataclasses.replace(stream, planner=_TrialPlan(stream.planner, self.n_batches))


class _TrialPlan(Planner):
    def __init__(self, real: Planner, n_batches: int) -> None:
        longest, *others = real.epoch(0)  # which begins with the longest; the others come as chance has it
        self.batches = [*islice(cycle(others or [longest]), n_batches), *repeat(longest, n_batches)]
        self.batches_per_epoch = len(self.batches)

    def epoch(self, epoch: int) -> list[Any]:
        return self.batches


def _quality(config: "Config", data: TranslationData) -> Quality:
    """The run's own, only quiet, and its translations as long in all as the references."""
    quality = Quality(
        data,
        monitor=config.training.monitor,
        n_pairs=config.trainer.validation_pairs,
        n_samples=config.trainer.samples,
        say=lambda line: None,
    )
    targets = data.tgt_tokenizer.encode_batch([pair.tgt for pair in quality.pairs])
    n_src, n_tgt = (sum(map(len, ids)) for ids in (quality.sources, targets))
    quality.search = SearchConfig(kind="greedy", max_length_a=n_tgt / max(1, n_src), max_length_b=1)
    return quality


class _Stopwatch(Callback):
    """`steps`: seconds and target tokens, on all devices, of each optimizer step; `validation`: seconds of the last."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, int]] = []
        self.validation = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.since, self.tokens = time.monotonic(), 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.tokens += batch.n_tokens * trainer.world_size
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            if batch.src.is_cuda:  # its steps are only begun yet
                torch.cuda.synchronize()
            now = time.monotonic()
            self.steps.append((now - self.since, self.tokens))
            self.since, self.tokens = now, 0

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.since = time.monotonic()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.validation = time.monotonic() - self.since


def _report(config: "Config", watch: _Stopwatch, quality: Quality, before: int) -> list[str]:
    lines = [f"{'':<17}{'seconds a step':>15}{'target tokens':>15}{'tokens/s':>10}"]
    typical, longest = watch.steps[WARM_UP : WARM_UP + STEPS], watch.steps[-STEPS:]
    for name, steps in (("typical batches", typical), ("longest batch", longest)):
        seconds, tokens = (sum(column) for column in zip(*steps, strict=True))
        columns = f"{seconds / len(steps):>15.3f}{tokens / len(steps):>15,.0f}{tokens / seconds:>10,.0f}"
        lines.append(f"{name:<17}{columns}")
    there_were = len(quality.data.validation) * len(quality.directions)
    n_pairs = f"{len(quality.pairs):,} of {there_were:,} pairs"
    lines.append(
        f"{'a validation':<17}{watch.validation:>15.3f}  {n_pairs} translated, as long as their references"
    )
    pace = sum(seconds for seconds, _ in typical) / len(typical)
    lines.append(forecast(config.trainer, pace, watch.validation))
    most = peak_memory(config.trainer.accelerator) / 1e9
    if config.trainer.accelerator == "gpu":
        there_are = torch.cuda.get_device_properties(0).total_memory / 1e9
        lines.append(f"peak memory: {most:.2f} GB on the GPU, which has {there_are:.1f}")
    else:
        lines.append(
            f"peak memory: {most:.2f} GB, of which {before / 1e9:.2f} were there before the model: python, "
            "its libraries, the data"
        )
    return lines


def forecast(trainer: TrainerConfig, step_seconds: float, validation_seconds: float) -> str:
    """How long a run of this pace takes, or how far it comes in trainer.max_time."""
    n_validations = math.ceil(trainer.max_steps / trainer.validate_every)
    total = trainer.max_steps * step_seconds + n_validations * validation_seconds
    if trainer.max_seconds is None or total <= trainer.max_seconds:
        return f"{trainer.max_steps:,} steps and {n_validations:,} validations: {_in_words(total)}"
    period = trainer.validate_every * step_seconds + validation_seconds
    whole, rest = divmod(trainer.max_seconds, period)
    n_steps = whole * trainer.validate_every + min(trainer.validate_every, rest / step_seconds)
    return (
        f"trainer.max_time={trainer.max_time} ends it after about {n_steps:,.0f} steps and {whole + 1:,.0f} "
        f"validations; all {trainer.max_steps:,} steps would take {_in_words(total)}"
    )


def _in_words(seconds: float) -> str:
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"

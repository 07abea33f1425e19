"""Progress bar on the terminal, and scalars for the loggers."""

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from dragoman import files
from dragoman.config import Config, TrainerConfig
from dragoman.data.collate import Batch
from dragoman.explain.picture import pixels
from dragoman.training import run

log = logging.getLogger(__name__)

# Seconds between two lines (no terminal) or two updates of the bar. Each one reads the loss, which makes a GPU wait.
LINE_SECONDS = 30.0
BAR_SECONDS = 0.5
CONSOLE = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)


@rank_zero_only
def report(message: str) -> None:
    """Print a line above the bar and write it to train.log, on rank 0 only."""
    log.info(message)
    CONSOLE.print(message)


def _mlflow(run_dir: Path, step: int) -> MLFlowLogger:
    """Return a logger for MLFLOW_TRACKING_URI, or for mlflow.db beside the run."""
    record, folder, uri = run_dir / "mlflow.txt", run_dir.parent.resolve(), os.environ.get("MLFLOW_TRACKING_URI")
    logger = MLFlowLogger(
        "dragoman",
        run_dir.name,
        uri or f"sqlite:///{folder}/mlflow.db",
        artifact_location=None if uri else (folder / "mlflow").as_uri(),
        run_id=record.read_text(encoding="utf-8") if step and record.exists() else None,
    )
    if run.is_first():
        files.write(record, (logger.run_id or "").encode())
    return logger


# name -> function (folder of the run, first step) -> Lightning logger
LOGGERS: dict[str, Callable[[Path, int], Logger]] = {
    # purge_step hides events that are newer than the checkpoint, because a resumed run logs these steps again.
    "tensorboard": lambda run_dir, step: TensorBoardLogger(
        str(run_dir), name="", version="tensorboard", default_hp_metric=False, purge_step=step + 1
    ),
    "csv": lambda run_dir, _: CSVLogger(str(run_dir), name="csv"),
    # create_new: each of several runs in one process is a run of its own.
    "wandb": lambda run_dir, _: WandbLogger(
        run_dir.name, run_dir, id=run_dir.name, project=os.environ.get("WANDB_PROJECT", "dragoman"), reinit="create_new"
    ),
    "mlflow": _mlflow,
}


def log_settings(trainer: Trainer, config: Config, scores: dict[str, float]) -> None:
    """Log only the settings that cannot change: MLflow refuses a changed value."""
    settings = run.flatten(dataclasses.asdict(config)).items()
    fixed = {name: value for name, value in settings if name not in run.MAY_CHANGE}
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):  # it shows settings only beside metrics
            logger.log_hyperparams(fixed, {f"hp/{name}": score for name, score in scores.items()})
        else:
            logger.log_hyperparams(fixed)
        logger.save()
        if isinstance(logger, WandbLogger):
            logger.experiment.finish()  # writes what is still in memory


def log_samples(trainer: Trainer, table: list[list[str]], pictures: dict[str, bytes]) -> None:
    """Log a table, header first, and PNG images with the loggers that show them."""
    images, step = {name: pixels(png) for name, png in pictures.items()}, trainer.global_step
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_text("samples", _markdown(table), step)
            for name, image in images.items():
                logger.experiment.add_image(name, image, step, dataformats="HWC")
        elif isinstance(logger, WandbLogger):
            logger.log_table("samples", table[0], table[1:], step=step)
            for name, image in images.items():
                logger.log_image(name, [image], step)
        elif isinstance(logger, MLFlowLogger):
            logger.experiment.log_text(logger.run_id, _markdown(table), f"samples/step-{step:09}.md")
            for name, image in images.items():
                logger.experiment.log_image(logger.run_id, image, key=name, step=step)


def _markdown(table: list[list[str]]) -> str:
    lines = [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in table]
    return "\n".join([lines[0], "|---" * len(table[0]) + "|", *lines[1:]])


class ProgressCallback(Callback):
    """Show loss, tokens/s and the time left; log scalars every `log_every` steps."""

    def __init__(self, config: TrainerConfig) -> None:
        self.config, self.max_seconds = config, config.max_seconds or math.inf
        self.seconds_before = 0.0  # of training before this resume
        self.pace = 0.0  # seconds per step, set by `plan`
        self.started = time.monotonic()
        columns = TaskProgressColumn(), BarColumn(20), TextColumn("{task.description}", markup=False)
        self.bar = Progress(*columns, console=CONSOLE, transient=True, auto_refresh=False)
        self.task = self.bar.add_task("", total=1.0)
        self.rate = 0.0  # target tokens per second, at the last logged step

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "pace": self.pace}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seconds_before, self.pace = state_dict["seconds"], state_dict["pace"]

    @property
    def seconds(self) -> float:
        """Seconds of training, including the time before a resume."""
        return self.seconds_before + time.monotonic() - self.started

    @property
    def is_late(self) -> bool:
        """Whether max_time is over. A planned run ends by its number of steps instead."""
        return not self.is_planned and self.seconds >= self.max_seconds

    @property
    def is_planned(self) -> bool:
        """Whether `n_steps` was computed from max_time."""
        return self.pace > 0 and self.config.max_steps is None

    @property
    def n_steps(self) -> float:
        """max_steps, or the steps that fit into max_time (infinite until `pace` is set)."""
        if self.config.max_steps is not None:
            return self.config.max_steps
        return max(1, round(self.max_seconds / self.pace)) if self.pace else math.inf

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.started = self.shown = self.since = time.monotonic()
        self.tokens = 0
        pl_module.max_steps = self.n_steps
        if trainer.is_global_zero and CONSOLE.is_terminal:
            self.bar.start()

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.state.fn == "fit":
            self.plan(trainer, pl_module)
        self.since, self.tokens = time.monotonic(), 0

    def plan(self, trainer: Trainer, pl_module: Any) -> None:
        """Compute the steps of the run from max_time and the time so far, once."""
        if math.isinf(self.n_steps) and not self.is_late:
            self.pace = trainer.strategy.broadcast(self.seconds / trainer.global_step)
            pl_module.max_steps = self.n_steps
            report(f"{self.n_steps:,} steps will fit into {self.config.max_time}; the schedule ends there")

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self.tokens += batch.n_tokens * trainer.world_size
        if (batch_idx + 1) % trainer.accumulate_grad_batches or not trainer.is_global_zero:
            return
        step, logs = trainer.global_step, trainer.global_step % self.config.log_every == 0
        measured = pl_module.measured if logs else {}  # waits for the GPU, and so comes before the clock
        now = time.monotonic()
        rate = self.tokens / (now - self.since)
        if logs:
            scalars = measured | {"tokens_per_second": rate}
            for logger in trainer.loggers:
                logger.log_metrics({f"train/{name}": value for name, value in scalars.items()}, step)
            self.rate, self.since, self.tokens = rate, now, 0
            # Without it, fragments of the heap grow with each new batch shape, to several times the memory in use.
            if pl_module.device.type == "cpu" and hasattr(run.LIBC, "malloc_trim"):
                run.LIBC.malloc_trim(0)
        if now - self.shown >= (BAR_SECONDS if CONSOLE.is_terminal else LINE_SECONDS):
            self.shown = now
            self._show_progress(step, pl_module.measured["loss"], self.rate or rate)

    def _show_progress(self, step: int, loss: float, rate: float) -> None:
        by_time = 0.0 if self.is_planned else self.seconds / self.max_seconds
        share = min(1.0, max(step / self.n_steps, by_time))
        left = timedelta(seconds=round(self.seconds / share - self.seconds))  # validations included
        of_all = f" of {self.n_steps}" if math.isfinite(self.n_steps) else ""
        text = f"step {step}{of_all}  loss {loss:.3f}  {rate:,.0f} tokens/s  {left} left"
        if CONSOLE.is_terminal:
            self.bar.update(self.task, completed=share, description=text, refresh=True)
        else:
            report(f"{share:.0%}  {text}")

    def on_train_end(self, *_: Any) -> None:
        if CONSOLE.is_terminal:
            self.bar.stop()

    on_exception = on_train_end  # type: ignore[assignment]

"""What a person sees while it trains: a progress bar, and curves in TensorBoard."""

import logging
import math
import sys
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from dragoman.data.collate import Batch
from dragoman.training.module import TranslationModule

log = logging.getLogger(__name__)

PLAIN_SECONDS = 30.0  # between two lines where there is no terminal to redraw
BAR_SECONDS = 0.5  # between two redrawings: asking a GPU for the loss makes the CPU wait for it


class Clock:
    """How long a run has trained, in seconds over all its starts."""

    def __init__(self) -> None:
        self.spent = 0.0  # before this start
        self.started = time.monotonic()

    def start(self) -> None:
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        return self.spent + time.monotonic() - self.started


class Progress(Callback):
    """Loss, tokens/s and the time left, on stderr: a bar on a terminal, now and then a line elsewhere."""

    def __init__(self, clock: Clock, *, max_steps: int, max_seconds: float | None) -> None:
        self.clock, self.max_steps, self.max_seconds = clock, max_steps, max_seconds
        self.bar: tqdm[Any] | None = None
        self.rate = 0.0

    def say(self, message: str) -> None:
        """A line above the bar, and in train.log."""
        log.info(message)
        tqdm.write(message, file=sys.stderr) if self.bar is not None else print(message, file=sys.stderr)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.clock.start()
        if trainer.is_global_zero:
            self.first_step, self.first_seconds = trainer.global_step, self.clock.seconds
            self.told_at = time.monotonic()
            self.bar = tqdm(
                total=1000,
                disable=not sys.stderr.isatty(),
                bar_format="{percentage:3.0f}%|{bar:20}| {postfix}",
                leave=False,
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TranslationModule)
        pause = PLAIN_SECONDS if self.bar is None or self.bar.disable else BAR_SECONDS
        if self.bar is None or time.monotonic() - self.told_at < pause or not pl_module.measured:
            return
        self.told_at = time.monotonic()
        step, seconds = trainer.global_step, self.clock.seconds
        pace = (seconds - self.first_seconds) / max(
            1, step - self.first_step
        )  # seconds a step, validations included
        left = (self.max_steps - step) * pace
        share = step / self.max_steps
        if self.max_seconds is not None:
            left = min(left, self.max_seconds - seconds)
            share = max(share, seconds / self.max_seconds)
        loss = pl_module.measured["loss"]
        text = f"step {step} of {self.max_steps}  loss {loss:.3f}  {self.rate:,.0f} tokens/s  {_clock(left)} left"
        self.bar.n = int(1000 * min(1.0, share))
        self.bar.set_postfix_str(text)
        if self.bar.disable:
            print(text, file=sys.stderr, flush=True)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


class Curves(Callback):
    """Scalars for TensorBoard every `log_every` optimizer steps; tells the bar how fast it goes."""

    def __init__(self, progress: Progress, *, log_every: int) -> None:
        self.progress, self.log_every = progress, log_every
        self._reset()

    def _reset(self) -> None:
        self.seconds = self.tokens = self.padding = 0.0
        self.batches = 0
        self.begun: float | None = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._reset()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.begun is None:
            self.begun = time.monotonic()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.begun is not None:  # the clock stands while others work
            self.seconds += time.monotonic() - self.begun
            self.begun = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TranslationModule)
        self.tokens += batch.n_tokens * trainer.world_size
        self.padding += batch.padding_share
        self.batches += 1
        at_step = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if not at_step or trainer.global_step % self.log_every or not (measured := pl_module.measured):
            return
        if self.begun is not None:
            self.seconds += time.monotonic() - self.begun
        self.progress.rate = self.tokens / max(1e-9, self.seconds)
        if trainer.is_global_zero and trainer.logger is not None:
            values = {
                "train/loss": measured["loss"],
                "train/perplexity": math.exp(min(50.0, measured["nll"])),
                "train/learning_rate": measured["lr"],
                "train/gradient_norm": measured["gradient_norm"],
                "train/tokens_per_second": self.progress.rate,
                "train/padding_share": self.padding / self.batches,
            }
            for name, value in values.items():
                trainer.logger.experiment.add_scalar(name, value, trainer.global_step)  # type: ignore[attr-defined]
        self._reset()


def _clock(seconds: float) -> str:
    """3725 -> '1:02:05', 65 -> '1:05'."""
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"

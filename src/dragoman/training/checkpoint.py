"""Checkpoints: when to save, when to stop, and what a resumed run starts from.

A checkpoint is always of the end of an optimizer step, after the validation where one is due, and holds everything
that the next step depends on. A resumed run therefore equals an uninterrupted one bit by bit (same machine, threads,
versions and precision). last.ckpt is replaced in one move, and the one before it stays as last.ckpt.previous;
last.ckpt.sha256 holds the checksums of both, so that damage is noticed when a run resumes.
"""

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO

from dragoman import files
from dragoman.config import TrainerConfig
from dragoman.errors import UserError
from dragoman.training.progress import ProgressCallback
from dragoman.training.results import Results
from dragoman.training.run import is_first

LAST, SUMS = "last.ckpt", "last.ckpt.sha256"
SIGNALS = [s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")]
# Steps between two looks at the first process's signals and clock, where several processes train together.
LOOK_EVERY = 10


class CheckpointIO(TorchCheckpointIO):
    """Replaces a checkpoint in one move, and keeps the previous one."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        sums = Path(path).with_name(SUMS)
        with files.replacing(Path(path), keep_previous=True) as file:
            torch.save(checkpoint, file)
            file.flush()
            # One more than two: killed before the renames, the two older ones are still those on the disk.
            known = sums.read_text().split()[:2] if sums.exists() else []
            files.write(sums, "\n".join([files.sha256(Path(file.name)), *known, ""]).encode())


def newest(run_dir: Path) -> Path | None:
    """Return the newest undamaged checkpoint, or None where there is none yet.

    A damaged last.ckpt is replaced by the previous one, with a note. Raises UserError when both are damaged.
    """
    last, sums = run_dir / LAST, run_dir / SUMS
    existing = [path for path in (last, files.previous_of(last)) if path.exists()]
    known = sums.read_text().split() if sums.exists() else []
    whole = next((path for path in existing if files.sha256(path) in known), None)
    if existing and whole is None:
        raise UserError(f"{last}: damaged, and no previous checkpoint is whole. Choose another name (name=...)")
    if whole is None or whole == last or not is_first():
        return whole
    print(f"{last} is damaged or missing; resuming from the checkpoint before it")
    os.replace(whole, last)  # or the next save would keep the damaged one as the previous one
    return last


def step_of(path: Path) -> int:
    """Return the optimizer step of a checkpoint."""
    return torch.load(path, weights_only=True, mmap=True, map_location="cpu")["global_step"]


class Stopped(BaseException):  # like KeyboardInterrupt: no `except Exception` may swallow it
    """A signal stopped the run; `path` is the checkpoint saved then, if any."""

    def __init__(self, signum: int, path: Path | None = None) -> None:
        super().__init__(signum, path)
        self.signum, self.path = signum, path


class StopSignals:
    """One handler for all signals that stop a run, between `with` and its end.

    While `deferred`, the first signal is only noted in `signum`, for the callback below; else it raises Stopped.
    """

    def __init__(self) -> None:
        self.signum, self.deferred = 0, False
        self.before = {signum: signal.getsignal(signum) for signum in SIGNALS}

    def __enter__(self) -> "StopSignals":
        self.listen()
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self.before.items():
            signal.signal(signum, handler)

    def listen(self) -> None:
        """Install the handler; again after Lightning has installed its own."""
        for signum, handler in self.before.items():
            if handler != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        again, self.signum = bool(self.signum), signum
        if again or not self.deferred:
            raise Stopped(signum)


class CheckpointCallback(Callback):
    """Save and stop; the last callback, so that it saves results of the others."""

    def __init__(
        self, config: TrainerConfig, results: Results, progress: ProgressCallback, signals: StopSignals
    ) -> None:
        self.config, self.results, self.progress, self.signals = config, results, progress, signals
        self.validation, self.path = results.validation, results.run_dir / LAST
        self.states: list[list[torch.Tensor]] = []  # random states, one list per process

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.states = state_dict["random"]

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.saved = time.monotonic()
        self.signals.listen()
        self.signals.deferred = True
        if self.states:  # last, so that nothing draws between here and the first batch
            restore_random_states(self.states[trainer.global_rank])
        elif trainer.global_rank:  # all began with one seed; from here on each has dropout of its own
            torch.manual_seed(torch.initial_seed() + trainer.global_rank)
        trainer.should_stop = self.validation.is_exhausted or self.progress.is_late

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        last = trainer.global_step >= self.progress.n_steps
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return  # gradients are half accumulated
        if trainer.world_size > 1 and trainer.global_step % LOOK_EVERY and not last:
            return
        due = time.monotonic() - self.saved > 60 * self.config.save_minutes
        # The first process's clock and signals hold for all.
        signum, late, due = trainer.strategy.broadcast((self.signals.signum, self.progress.is_late, due))
        # Lightning then validates once more.
        trainer.should_stop = trainer.should_stop or last or late
        interval = self.config.validate_every * trainer.accumulate_grad_batches
        validation_is_next = trainer.should_stop or (batch_idx + 1) % interval == 0
        if (signum or due) and not validation_is_next:  # a validation saves, and stops, at its end
            self._save(trainer, pl_module, signum)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.state.fn == "fit":
            self.validation.history[-1]["seconds"] = round(self.progress.seconds)
            trainer.should_stop = trainer.should_stop or self.validation.is_exhausted
            pl_module.check_weights()
            if trainer.is_global_zero:
                self.results.keep(trainer.global_step)
            self._save(trainer, pl_module, trainer.strategy.broadcast(self.signals.signum))

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.signals.deferred = False

    def _save(self, trainer: Trainer, module: Any, signum: int) -> None:
        """Save a checkpoint, and stop if there was a signal."""
        module.check_weights()
        self.states = [random_states()] * trainer.world_size
        if trainer.world_size > 1:
            torch.distributed.all_gather_object(self.states, random_states())
        trainer.save_checkpoint(self.path)
        self.saved = time.monotonic()
        if trainer.is_global_zero:
            self.results.write(step=trainer.global_step, seconds=round(self.progress.seconds, 1))
        if signum:
            raise Stopped(signum, self.path)


def random_states() -> list[torch.Tensor]:
    """Read torch's random generators, the CPU's first; training draws from no others."""
    if torch.backends.mps.is_available():
        return [torch.get_rng_state(), torch.mps.get_rng_state()]
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def restore_random_states(states: list[torch.Tensor]) -> None:
    """Set every generator to what `random_states` returned."""
    torch.set_rng_state(states[0])
    if torch.backends.mps.is_available() and states[1:]:
        torch.mps.set_rng_state(states[1])
    elif torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states[1:])

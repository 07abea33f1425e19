"""What survives a stop: checkpoints to go on from, snapshots to average, the best bundle to translate with.

A checkpoint is always of the end of an optimizer step, since gradients are not in it, and carries everything the next
step depends on: weights, optimizer, position in the data, random states, the record of validations. A run that went on
from it therefore arrives, bit by bit, where it would have arrived (same machine, threads, versions, precision). Two
things are exceptions: the clock decides when to stop by trainer.max_time, and a batch that found no memory was halved.
How the files are written: checkpoint.py.
"""

import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from safetensors.torch import save

from dragoman import durable
from dragoman.errors import UserError
from dragoman.training.callbacks import Clock
from dragoman.training.checkpoint import LAST
from dragoman.training.module import TranslationModule
from dragoman.training.quality import Quality
from dragoman.training.signals import Signals, Stopped

SNAPSHOTS = "snapshots"


def random_states() -> dict[str, Any]:
    """Every generator that training could draw from, as plain numbers and tensors."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [kind, keys.tolist(), *rest],  # type: ignore[union-attr]
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "mps": [torch.mps.get_rng_state()] if torch.backends.mps.is_available() else [],
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
    if states["mps"] and torch.backends.mps.is_available():
        torch.mps.set_rng_state(states["mps"][0].cpu())


class Keeper(Callback):
    """Decides when to save and when to stop. Comes last among the callbacks, so that it saves what they know.

    `run` names the run in its checkpoints; `save_bundle` writes the model given to it as the run's bundle;
    `write_metrics` records progress for people and for the next start.
    A stop that is asked for during a validation is not kept waiting for its end: the validation is given up, and
    `owed`. A run that goes on begins with the validation that it owes.
    """

    def __init__(
        self,
        run_dir: Path,
        run: str,
        quality: Quality,
        clock: Clock,
        signals: Signals,
        *,
        max_seconds: float | None,
        save_minutes: float,
        n_snapshots: int,
        save_bundle: Callable[[torch.nn.Module, dict[str, Any]], None],
        write_metrics: Callable[[dict[str, Any]], None],
    ) -> None:
        self.run_dir, self.run, self.quality, self.clock, self.signals = run_dir, run, quality, clock, signals
        self.max_seconds, self.save_seconds, self.n_snapshots = max_seconds, 60 * save_minutes, n_snapshots
        self.save_bundle, self.write_metrics = save_bundle, write_metrics
        self.saved = time.monotonic()
        self.finished: str | None = None
        self.owed = False
        self._validating: dict[str, Any] | None = None  # what `quality` knew when this validation began
        self._states: list[dict[str, Any]] = []  # random states, one per process, as saved or loaded last

    # -- state ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "seconds": self.clock.seconds, "random": self._states, "quality": self.quality.state(),
            "owed": self.owed, "finished": self.finished,
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.clock.spent, self._states = state_dict["seconds"], state_dict["random"]
        self.quality.restore(state_dict["quality"])
        self.owed = state_dict["owed"]
        if state_dict["finished"] == "early stopping":  # more steps or more time do not change that
            self.finished = state_dict["finished"]

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["run"] = self.run

    # -- when to save, when to stop ---------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.saved = time.monotonic()
        self.signals.listen()  # Lightning has put handlers of its own in place
        self.signals.patient = True
        if self._states:  # last, so that nothing draws between here and the first batch
            restore_random_states(self._states[trainer.global_rank])
        elif trainer.global_rank:  # all began with one seed; from here on each drops out its own units
            torch.manual_seed(torch.initial_seed() + trainer.global_rank)
        if self.owed:
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.run()
            trainer.training = True
        trainer.should_stop = trainer.should_stop or self.finished is not None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return  # gradients are half gathered: not a moment to save or stop
        late, asked, due = self._decide(
            trainer,
            self.max_seconds is not None and self.clock.seconds >= self.max_seconds,
            self.signals.asked is not None,
            self.signals.save or time.monotonic() - self.saved > self.save_seconds,
        )
        if trainer.max_steps > 0 and trainer.global_step >= trainer.max_steps:
            self.finished = "max_steps"
        elif late:
            self.finished = "max_time"
        trainer.should_stop = trainer.should_stop or self.finished is not None  # it then validates once more
        validation_is_next = trainer.should_stop or (batch_idx + 1) % int(trainer.val_check_batch or 1) == 0
        if asked:
            self.owed = validation_is_next
            self._save(trainer)
            raise self._stopped()
        elif due and not validation_is_next:  # a validation saves at its end, with what it found
            self._save(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        self._validating = self.quality.state()
        if trainer.world_size == 1:  # several processes wait for each other, and go through with it
            self.signals.patient = False
            if self.signals.asked is not None:
                raise Stopped(self.signals.asked)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validating = None  # it is made, and now it is kept
        self.signals.patient = trainer.state.fn == "fit"

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        training = trainer.state.fn == "fit"
        if not (training or self.owed):
            return
        if trainer.should_stop and not self.finished:
            self.finished = "early stopping"
        _module_of(trainer).refuse_broken_weights()  # before any of them is kept
        self.quality.history[-1]["seconds"] = round(self.clock.seconds)
        self._first(trainer, lambda: self._keep(_module_of(trainer), trainer.global_step))
        self.owed = False
        if training:
            self._save(trainer)
            (asked,) = self._decide(trainer, self.signals.asked is not None)
            if asked:
                raise self._stopped()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if not isinstance(exception, Stopped) or self._validating is None or self.owed:
            return
        self.quality.restore(self._validating)
        trainer.fit_loop.epoch_loop.val_loop.batch_progress.reset()  # to Lightning too it never began
        self.owed = True
        self._save(trainer)
        exception.path = self.run_dir / LAST

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signals.patient = False

    def _stopped(self) -> Stopped:
        return Stopped(
            self.signals.asked or signal.SIGTERM, self.run_dir / LAST
        )  # or: the first process was asked

    def _decide(self, trainer: Trainer, *seen: bool) -> tuple[bool, ...]:
        """What the first process sees (its clock, its signals) holds for all of them."""
        return seen if trainer.world_size == 1 else trainer.strategy.broadcast(seen)

    # -- saving -----------------------------------------------------------------------------------------------

    def _save(self, trainer: Trainer) -> None:
        _module_of(trainer).refuse_broken_weights()
        self._states = [random_states()]
        if trainer.world_size > 1:
            self._states *= trainer.world_size
            torch.distributed.all_gather_object(self._states, random_states())
        failure = None
        try:
            trainer.save_checkpoint(self.run_dir / LAST)
        except (
            UserError
        ) as error:  # of the first process, which writes, while the others wait where Lightning waits
            failure = str(error)
            trainer.strategy.barrier()
        self._agree(trainer, failure)
        self.saved, self.signals.save = time.monotonic(), False
        news = {"step": trainer.global_step, "seconds": round(self.clock.seconds, 1)}
        self._first(trainer, lambda: self.write_metrics(news))

    def _keep(self, module: TranslationModule, step: int) -> None:
        """A snapshot, and the bundle if there was never a better one."""
        folder = self.run_dir / SNAPSHOTS
        folder.mkdir(exist_ok=True)
        weights: dict[str, torch.Tensor] = dict(module.best_model.named_parameters())  # bare, tied ones once
        durable.write(folder / f"step-{step:09d}.safetensors", save(weights))
        for old in sorted(folder.glob("step-*.safetensors"))[: -self.n_snapshots]:
            old.unlink()
        if self.quality.is_best:
            self.save_bundle(module.best_model, self.quality.history[-1])

    def _first(self, trainer: Trainer, writing: Callable[[], None]) -> None:
        """Done by the first process alone."""
        failure = None
        if trainer.is_global_zero:
            try:
                writing()
            except UserError as error:
                failure = str(error)
            except OSError as error:
                failure = str(durable.refusal(Path(error.filename or self.run_dir), error))
        self._agree(trainer, failure)

    def _agree(self, trainer: Trainer, failure: str | None) -> None:
        """What the first process could not write stops all of them: the others would wait for it for ever."""
        (failure,) = (failure,) if trainer.world_size == 1 else trainer.strategy.broadcast((failure,))
        if failure is not None:
            raise UserError(failure)


def _module_of(trainer: Trainer) -> TranslationModule:
    assert isinstance(trainer.lightning_module, TranslationModule)
    return trainer.lightning_module

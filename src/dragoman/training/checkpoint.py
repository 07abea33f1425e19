"""What survives a stop: checkpoints to go on from, snapshots to average, the best bundle to translate with.

A checkpoint is written whole or not at all, always at the end of an optimizer step, and carries everything the next
step depends on: weights, optimizer, position in the data, random states, the record of validations. It is only ever
read back by its own run, with weights_only=True.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from safetensors.torch import save_file

from dragoman import durable
from dragoman.errors import UserError
from dragoman.training.callbacks import Clock
from dragoman.training.module import TranslationModule
from dragoman.training.quality import Quality

LAST, SNAPSHOTS = "last.ckpt", "snapshots"


class Stopped(Exception):  # noqa: N818 (not an error: it has saved itself)
    """The run was asked to stop by a signal, and has saved itself."""

    def __init__(self, signum: int, path: Path) -> None:
        super().__init__(signum, path)
        self.signum, self.path = signum, path


class AtomicCheckpointIO(CheckpointIO):
    """Writes beside the old file, flushes to the disk, then takes its place; the last but one is kept as .previous."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.writing")
        with open(temporary, "wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():  # a second name for the old file: at no moment is there none under `path`
            previous = path.with_name(path.name + ".previous")
            previous.unlink(missing_ok=True)
            os.link(path, previous)
        os.replace(temporary, path)
        durable.force_to_disk(path.parent)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        try:
            return torch.load(path, map_location=map_location or "cpu", weights_only=True)
        except Exception as error:
            raise UserError(
                f"cannot read the checkpoint {path} ({str(error).splitlines()[0]}); if {path}.previous is whole, "
                f"rename it to {Path(path).name} and run the same command again"
            ) from None

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


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

    `save_bundle` writes the model given to it as the run's bundle; `write_metrics` records progress for people and
    for the next start.
    """

    def __init__(
        self,
        run_dir: Path,
        quality: Quality,
        clock: Clock,
        *,
        max_seconds: float | None,
        save_minutes: float,
        n_snapshots: int,
        save_bundle: Callable[[torch.nn.Module, dict[str, Any]], None],
        write_metrics: Callable[[dict[str, Any]], None],
    ) -> None:
        self.run_dir, self.quality, self.clock = run_dir, quality, clock
        self.max_seconds, self.save_seconds, self.n_snapshots = max_seconds, 60 * save_minutes, n_snapshots
        self.save_bundle, self.write_metrics = save_bundle, write_metrics
        self.saved = time.monotonic()
        self.finished: str | None = None
        self.signum: int | None = None
        self._states: list[dict[str, Any]] = []  # random states, one per process, as saved or loaded last
        self._handlers: dict[int, Any] = {}

    # -- state ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.clock.seconds, "random": self._states, "quality": self.quality.state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.clock.spent, self._states = state_dict["seconds"], state_dict["random"]
        self.quality.restore(state_dict["quality"])

    # -- signals ----------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.saved = time.monotonic()
        for signum in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread: nobody can signal us there
                self._handlers[signum] = signal.signal(signum, self._asked_to_stop)
        if self._states:  # last, so that nothing draws between here and the first batch
            restore_random_states(self._states[trainer.global_rank])
        elif trainer.global_rank:  # all began with one seed; from here on each drops out its own units
            torch.manual_seed(torch.initial_seed() + trainer.global_rank)

    def _asked_to_stop(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            self._give_back_handlers()
            raise KeyboardInterrupt  # asked twice: at once, without saving
        self.signum = signum

    def _give_back_handlers(self) -> None:
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)
        self._handlers.clear()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._give_back_handlers()

    # -- when to save, when to stop ---------------------------------------------------------------------------

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return  # gradients are half gathered: not a moment to save or stop
        if trainer.should_stop:
            return
        late, asked, due = self._decide(
            trainer,
            self.max_seconds is not None and self.clock.seconds >= self.max_seconds,
            self.signum is not None,
            time.monotonic() - self.saved > self.save_seconds,
        )
        if trainer.max_steps > 0 and trainer.global_step >= trainer.max_steps:
            self.finished = "max_steps"
        elif late:
            self.finished = "max_time"
        if self.finished:
            trainer.should_stop = True  # Lightning validates once more, and `on_validation_end` saves
        elif (batch_idx + 1) % int(trainer.val_check_batch or 1) == 0:
            return  # a validation comes next and saves, with what it found
        elif asked:
            self._save(trainer)
            raise Stopped(self.signum or signal.SIGTERM, self.run_dir / LAST)
        elif due:
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        assert isinstance(pl_module, TranslationModule)
        if trainer.should_stop and not self.finished:
            self.finished = "early stopping"
        pl_module.refuse_broken_weights()  # before any of them is kept
        self.quality.history[-1]["seconds"] = round(self.clock.seconds)
        if trainer.is_global_zero:
            self._snapshot(pl_module.best_model, trainer.global_step)
            if self.quality.is_best:
                self.save_bundle(pl_module.best_model, self.quality.history[-1])
        self._save(trainer)
        (asked,) = self._decide(trainer, self.signum is not None)
        if asked and not self.finished:
            raise Stopped(self.signum or signal.SIGTERM, self.run_dir / LAST)

    def _decide(self, trainer: Trainer, *seen: bool) -> tuple[bool, ...]:
        """What the first process sees (its clock, its signals) holds for all of them."""
        return seen if trainer.world_size == 1 else trainer.strategy.broadcast(seen)

    def _save(self, trainer: Trainer) -> None:
        assert isinstance(trainer.lightning_module, TranslationModule)
        trainer.lightning_module.refuse_broken_weights()
        self._states = [random_states()]
        if trainer.world_size > 1:
            self._states *= trainer.world_size
            torch.distributed.all_gather_object(self._states, random_states())
        trainer.save_checkpoint(self.run_dir / LAST)
        self.saved = time.monotonic()
        if trainer.is_global_zero:
            self.write_metrics({"step": trainer.global_step, "seconds": round(self.clock.seconds, 1)})

    def _snapshot(self, model: torch.nn.Module, step: int) -> None:
        """Bare weights for averaging, tied ones once; the oldest beyond `n_snapshots` goes."""
        folder = self.run_dir / SNAPSHOTS
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"step-{step:09d}.safetensors"
        save_file(dict(model.named_parameters()), path.with_suffix(".writing"))
        os.replace(path.with_suffix(".writing"), path)
        for old in sorted(folder.glob("step-*.safetensors"))[: -self.n_snapshots]:
            old.unlink()

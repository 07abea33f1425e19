"""Checkpoints and results: what a run saves, when it stops, how it resumes.

A checkpoint is saved at the end of an optimizer step, or after the validation if one is due. It holds all state that
the next step needs. On a CPU a resumed run is therefore bit by bit equal to an uninterrupted one, on the same machine
with the same threads, versions and precision. Each save writes a complete new last.ckpt and keeps the old file as
last.ckpt.previous. A resumed run compares the files with the checksums in last.ckpt.sha256.
"""

import json
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO
from safetensors.torch import save

from dragoman import bundle, files
from dragoman.errors import UserError
from dragoman.training.progress import ProgressCallback
from dragoman.training.run import is_first, provenance
from dragoman.training.validation import ValidationCallback

LAST, SUMS = "last.ckpt", "last.ckpt.sha256"
SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1
# Optimizer steps between two broadcasts of rank 0's signal and clock. A broadcast makes all ranks wait.
BROADCAST_EVERY = 10


class CheckpointIO(TorchCheckpointIO):
    """Checkpoint I/O that writes a complete new file and keeps the previous one."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        sums = Path(path).with_name(SUMS)
        with files.replacing(Path(path), keep_previous=True) as file:
            torch.save(checkpoint, file)
            file.flush()
            # The new checksum and the two before: if the process is killed now, the two older files are on the disk.
            known = sums.read_text().split()[:2] if sums.exists() else []
            files.write(sums, "\n".join([files.sha256(Path(file.name)), *known, ""]).encode())


def newest(run_dir: Path) -> Path | None:
    """Return the newest intact checkpoint, or None if there is none yet.

    If last.ckpt is damaged or missing, the previous checkpoint takes its place. Raises UserError if none is intact.
    """
    last, sums = run_dir / LAST, run_dir / SUMS
    existing = [path for path in (last, files.previous_of(last)) if path.exists()]
    known = sums.read_text().split() if sums.exists() else []
    intact = next((path for path in existing if files.sha256(path) in known), None)
    if existing and intact is None:
        checked = f"compared with {SUMS}; a copied run needs this file too"
        raise UserError(f"{last}: damaged, and no previous checkpoint is intact ({checked}). Choose another name=...")
    if intact is None or intact == last or not is_first():
        return intact
    print(f"{last} is damaged or missing; resuming from the previous checkpoint")
    # Otherwise the next save would keep the damaged file as the previous one.
    os.replace(intact, last)
    return last


class Stopped(BaseException):  # like KeyboardInterrupt, so that `except Exception` does not catch it
    """Exception after a stop signal; `path` is the saved checkpoint, or None."""

    def __init__(self, signum: int, path: Path | None = None) -> None:
        self.signum, self.path = signum, path


class StopSignals:
    """Context manager with one handler for all signals that stop a run.

    The first signal raises Stopped. If `deferred`, it only sets `signum`, and CheckpointCallback saves and stops. After
    the first signal, only SIGINT raises Stopped, because schedulers send SIGTERM more than once.
    """

    def __init__(self) -> None:
        self.signum, self.deferred = 0, False
        # An ignored signal stays ignored, e.g. SIGHUP under nohup.
        self.before = {s: signal.getsignal(s) for s in SIGNALS if signal.getsignal(s) != signal.SIG_IGN}

    def listen(self) -> "StopSignals":
        """Install the handler; called again after Lightning has installed its own."""
        for signum in self.before:
            signal.signal(signum, self._handle)
        return self

    __enter__ = listen

    def __exit__(self, *error: object) -> None:
        for signum, handler in self.before.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        stops_now = signum == signal.SIGINT if self.signum else not self.deferred
        self.signum = signum
        if stops_now:
            raise Stopped(signum)


class CheckpointCallback(Callback):
    """Save checkpoints and results; stop the run. `metrics` becomes metrics.json.

    It must be the last callback, because it saves what the others update in the same hook.
    """

    def __init__(
        self, validation: ValidationCallback, progress: ProgressCallback, signals: StopSignals, metrics: dict[str, Any]
    ) -> None:
        self.validation, self.progress, self.signals = validation, progress, signals
        self.config, self.data, self.module = validation.config, validation.data, validation.module
        self.run_dir = Path(self.config.run_dir)
        self.path, self.snapshots = self.run_dir / LAST, self.run_dir / "snapshots"
        self.metrics = metrics | {"data": self.data.fingerprint, "notes": self.data.notes, "machine": provenance()}

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.saved = time.monotonic()
        self.signals.listen()
        self.signals.deferred = True
        trainer.should_stop = self._is_over(trainer) or self.progress.is_late

    def _is_over(self, trainer: Trainer) -> bool:
        return trainer.global_step >= self.progress.n_steps or self.validation.is_exhausted

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        last = trainer.global_step >= self.progress.n_steps
        # Only complete optimizer steps are saved.
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if trainer.world_size > 1 and trainer.global_step % BROADCAST_EVERY and not last:
            return
        due = time.monotonic() - self.saved > 60 * self.config.trainer.save_minutes
        # Plan the steps after a quarter of the time, if no validation did: the schedule needs time to decay.
        quarter = self.progress.seconds > self.progress.max_seconds / 4
        # All ranks use the signal and the clock of rank 0, so that they stop at the same step.
        seen = self.signals.signum, self.progress.is_late, due, quarter
        signum, late, due, quarter = trainer.strategy.broadcast(seen)
        if quarter:
            self.progress.plan(trainer, pl_module)
        # Lightning validates once more before it stops.
        trainer.should_stop = trainer.should_stop or last or late
        interval = self.config.trainer.validate_every * trainer.accumulate_grad_batches
        validation_is_next = trainer.should_stop or (batch_idx + 1) % interval == 0
        # After a validation, on_validation_end saves and stops.
        if (signum or due) and not validation_is_next:
            self._save(trainer, signum)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.state.fn == "fit":
            self.validation.history[-1]["seconds"] = round(self.progress.seconds)
            trainer.should_stop = trainer.should_stop or self._is_over(trainer)
            self.keep(trainer.global_step)
            self._save(trainer, trainer.strategy.broadcast(self.signals.signum))

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.signals.deferred = False

    def _save(self, trainer: Trainer, signum: int) -> None:
        """Save a checkpoint; raise Stopped if there was a signal."""
        trainer.save_checkpoint(self.path)
        self.saved = time.monotonic()
        self.write(step=trainer.global_step)
        if signum:
            raise Stopped(signum, self.path)

    @rank_zero_only
    def write(self, **news: Any) -> None:
        """Write metrics.json, for people and for the next start of the run."""
        self.metrics |= news | {
            "seconds": round(self.progress.seconds, 1),
            "best": self.validation.best,
            "validations": self.validation.history,
            "train": self.module.measured,
            "skipped": int(self.module.skips[0]),
        }
        content = json.dumps(self.metrics, ensure_ascii=False, indent=2) + "\n"
        files.write(self.run_dir / "metrics.json", content.encode())

    @rank_zero_only
    def keep(self, step: int) -> None:
        """Save a snapshot; if this validation is the best, also bundle and translations."""
        self.snapshots.mkdir(exist_ok=True)
        # named_parameters, unlike state_dict, lists a tied parameter once.
        weights = save(dict(self.module.eval_model.named_parameters()))
        files.write(self.snapshots / f"step-{step:09d}.safetensors", weights)
        for old in sorted(self.snapshots.glob("*.safetensors"))[: -self.config.trainer.keep_snapshots]:
            old.unlink()
        if self.validation.best is not self.validation.history[-1]:
            return
        texts = json.dumps(self.validation.translations(), ensure_ascii=False, indent=1)
        files.write(self.run_dir / "validation.json", texts.encode("utf-8", "replace"))
        c, data = self.config, self.data
        origin: dict[str, Any] = {"corpora": [corpus.label for corpus in c.data.corpora], "notes": data.notes}
        origin |= {"fingerprint": data.fingerprint, "train_pairs": data.train_size}
        meta = {"name": c.name, "validation": self.validation.best, "data": origin, "max_length": c.data.max_length}
        meta["usual_length"] = int(np.percentile(data.lengths[0], 99.9))
        trained = bundle.Bundle(
            model=self.module.eval_model,
            model_config=c.model,
            src_tokenizer=data.src_tokenizer,
            tgt_tokenizer=data.tgt_tokenizer,
            src=c.data.src,
            tgt=c.data.tgt,
            meta=meta,
            search=c.search,
            directions=data.directions,
        )
        bundle.save(trained, self.run_dir / "bundle")

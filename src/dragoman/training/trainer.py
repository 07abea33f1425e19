"""Lightning's Trainer, told what a run's configuration says: hardware, length, how often to look up."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from dragoman.errors import UserError, suggest
from dragoman.training.checkpoint import SealedCheckpointIO
from dragoman.training.machine import (
    ACCELERATORS,
    LIGHTNING_PRECISION,
    PRECISIONS,
    STRATEGIES,
    accelerator_for,
    precision_for,
)
from dragoman.training.packing import packing_for
from dragoman.training.run import flatten, plain

if TYPE_CHECKING:
    from dragoman.config import Config


@dataclass(kw_only=True)
class TrainerConfig:
    """What Lightning's Trainer is told: hardware, length, and how often to look up. Steps are optimizer steps."""

    accelerator: str = "auto"  # auto, cpu, gpu, mps
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"  # auto (ddp where there are several devices) or ddp
    precision: str = "auto"  # bf16 where the hardware has it, else 32; or 32, bf16, fp16
    compile: bool = (
        False  # torch.compile; not for a CPU, where a step takes 1.4 times as long: scripts/README.md
    )
    max_steps: int = 100_000
    max_time: str | None = None  # DD:HH:MM:SS of training, over all starts of the run
    validate_every: int = 1000
    validation_pairs: int = 1000  # translated at each validation
    samples: int = 8  # of them shown in TensorBoard
    log_every: int = 20
    save_minutes: float = 5.0
    keep_snapshots: int = 5

    def __post_init__(self) -> None:
        for key, choices in (
            ("accelerator", ACCELERATORS), ("strategy", STRATEGIES), ("precision", PRECISIONS),
        ):  # fmt: skip
            value = getattr(self, key)
            if value not in choices:
                raise UserError(
                    f"trainer.{key}={value}: choose one of {', '.join(choices)}{suggest(value, choices)}"
                )
        for key in (
            "devices", "nodes", "max_steps", "validate_every", "validation_pairs", "log_every", "keep_snapshots",
        ):  # fmt: skip
            if getattr(self, key) < 1:
                raise UserError(f"trainer.{key}={getattr(self, key)}: must be at least 1")
        for key in ("samples", "save_minutes"):
            if getattr(self, key) < 0:
                raise UserError(f"trainer.{key}={getattr(self, key)}: must not be negative")
        self.max_seconds  # noqa: B018 (refuses what it cannot read)

    @property
    def max_seconds(self) -> float | None:
        """max_time in seconds."""
        if self.max_time is None:
            return None
        try:
            days, hours, minutes, seconds = (int(part) for part in self.max_time.split(":"))
        except ValueError:
            raise UserError(
                f"trainer.max_time={self.max_time}: write days:hours:minutes:seconds, e.g. 00:00:10:00"
            ) from None
        total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        if total < 1:
            raise UserError(f"trainer.max_time={self.max_time}: must be at least a second")
        return total


def resolved(config: "Config") -> "Config":
    """The same with "auto" replaced by what it means here: a run that goes on elsewhere must compute alike."""
    accelerator = accelerator_for(config.trainer.accelerator, config.trainer.devices)
    precision = precision_for(config.trainer.precision, accelerator)
    trainer = dataclasses.replace(config.trainer, accelerator=accelerator, precision=precision)
    data = dataclasses.replace(config.data, packing=packing_for(config, accelerator, precision))
    return dataclasses.replace(config, trainer=trainer, data=data)


def trainer_for(config: "Config", run_dir: Path, callbacks: list[Callback], step: int) -> Trainer:
    c = config.trainer
    board = TensorBoardLogger(
        str(run_dir),
        name="",
        version="tensorboard",
        default_hp_metric=False,
        purge_step=step + 1,  # what was drawn after it will be drawn again
    )
    board.log_hyperparams(flatten(plain(config)))
    return Trainer(
        accelerator=c.accelerator,
        devices=c.devices,
        num_nodes=c.nodes,
        strategy=c.strategy,
        precision=LIGHTNING_PRECISION[c.precision],  # type: ignore[arg-type]
        max_epochs=-1,  # the data is one endless epoch to Lightning; it counts its own
        max_steps=c.max_steps,
        accumulate_grad_batches=config.training.accumulate,
        val_check_interval=c.validate_every * config.training.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=board,
        callbacks=callbacks,
        plugins=[SealedCheckpointIO()],
        default_root_dir=str(run_dir),
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )

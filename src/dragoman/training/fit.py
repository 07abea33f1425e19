"""One run, from its configuration to its bundle: `fit(config)`.

A run is a folder. Running the same command again is always safe: an unfinished run goes on where it stopped, a
finished one says so, a changed configuration is refused by naming what changed.
"""

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import TensorBoardLogger
from safetensors.torch import load_file

from dragoman import bundle, cost
from dragoman.data.datamodule import TranslationData
from dragoman.errors import UserError, suggest
from dragoman.model.transformer import Transformer
from dragoman.training.callbacks import Clock, Curves, Progress
from dragoman.training.checkpoint import LAST, SNAPSHOTS, AtomicCheckpointIO, Keeper, Stopped
from dragoman.training.loss import chunk_on
from dragoman.training.machine import (
    ACCELERATORS,
    LIGHTNING_PRECISION,
    PRECISIONS,
    STRATEGIES,
    accelerator_for,
    keep_freed_memory,
    precision_for,
)
from dragoman.training.module import TranslationModule
from dragoman.training.packing import packing_for
from dragoman.training.pretrained import check_vectors, start_from_vectors
from dragoman.training.quality import Quality
from dragoman.training.run import already_done, flatten, lock, open_run, plain, quiet, write_json

if TYPE_CHECKING:
    from dragoman.config import Config

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class TrainerConfig:
    """What Lightning's Trainer is told: hardware, length, and how often to look up. Steps are optimizer steps."""

    accelerator: str = "auto"  # auto, cpu, gpu, mps
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"  # auto (ddp where there are several devices) or ddp
    precision: str = "auto"  # bf16 where the hardware has it, else 32; or 32, bf16, fp16
    compile: bool = False
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


def fit(config: "Config") -> Path:
    """Train, or go on training, and return the folder of the run's best bundle.

    Raises UserError for what the user can mend, and Stopped when a signal ended the run early (it has saved itself).
    """
    run_dir = Path(config.run_dir)
    config = resolved(config)
    with lock(run_dir):
        return _fit(config, run_dir)


def resolved(config: "Config") -> "Config":
    """The same with "auto" replaced by what it means here: a run that goes on elsewhere must compute alike."""
    accelerator = accelerator_for(config.trainer.accelerator, config.trainer.devices)
    precision = precision_for(config.trainer.precision, accelerator)
    trainer = dataclasses.replace(config.trainer, accelerator=accelerator, precision=precision)
    data = dataclasses.replace(config.data, packing=packing_for(config, accelerator, precision))
    return dataclasses.replace(config, trainer=trainer, data=data)


def _fit(config: "Config", run_dir: Path) -> Path:
    metrics = open_run(config, run_dir)
    quiet(run_dir)
    done = already_done(config, metrics)
    if done:
        print(f"{run_dir} is finished ({done}); its bundle is {run_dir / 'bundle'}")
        return run_dir / "bundle"
    if not (run_dir / LAST).exists():
        check_vectors(config.model)
    data = TranslationData(config.data, run_dir, config.seed)
    prepare(config, data)
    if metrics.get("data", data.fingerprint) != data.fingerprint:
        raise UserError(
            f"the data of {run_dir} has changed since the run began; choose another name (name=...) to train on it"
        )
    metrics |= {"data": data.fingerprint, "notes": list(data.notes)}
    return _train(config, run_dir, data, metrics)


def prepare(config: "Config", data: TranslationData) -> None:
    """Everything that comes before the model."""
    keep_freed_memory()
    seed_everything(config.seed, verbose=False)
    data.prepare()
    if not len(data.val_dataloader()):
        raise UserError(
            "there are no validation pairs to choose the best model by: give a corpus with a validation split, "
            "or set data.validation_size"
        )


def module_for(
    config: "Config", data: TranslationData, metrics: dict[str, Any], *, new: bool
) -> TranslationModule:
    """As it begins; a run that goes on has its weights in its checkpoint, and asks for no word vectors."""
    model = Transformer(
        config.model, src_vocab_size=len(data.src_tokenizer), tgt_vocab_size=len(data.tgt_tokenizer)
    )
    if new and config.model.embedding.init is not None:
        path = Path(config.model.embedding.init)
        metrics["vectors"] = start_from_vectors(model, path, data.src_tokenizer, data.tgt_tokenizer)
    return TranslationModule(
        model, config.training, max_steps=config.trainer.max_steps, compile=config.trainer.compile
    )


def _train(config: "Config", run_dir: Path, data: TranslationData, metrics: dict[str, Any]) -> Path:
    resuming = (run_dir / LAST).exists()
    module = module_for(config, data, metrics, new=not resuming)
    write_json(run_dir / "metrics.json", metrics)  # from here on the run is one of this configuration
    clock = Clock()
    progress = Progress(clock, max_steps=config.trainer.max_steps, max_seconds=config.trainer.max_seconds)
    module.say = progress.say
    quality = Quality(
        data,
        monitor=config.training.monitor,
        n_pairs=config.trainer.validation_pairs,
        n_samples=config.trainer.samples,
        say=progress.say,
        average=metrics.get("average"),
    )

    def write_metrics(news: dict[str, Any]) -> None:
        best = {
            "best": quality.best,
            "validations": quality.history,
            "average": quality.average,
            "train": module.measured,
            "skipped": module.skipped,
        }
        write_json(run_dir / "metrics.json", metrics | news | best)

    def save_bundle(best: torch.nn.Module, record: dict[str, Any]) -> None:
        bundle.save(_bundle_of(config, data, best, record), run_dir / "bundle")

    keeper = Keeper(
        run_dir,
        quality,
        clock,
        max_seconds=config.trainer.max_seconds,
        save_minutes=config.trainer.save_minutes,
        n_snapshots=config.trainer.keep_snapshots,
        save_bundle=save_bundle,
        write_metrics=write_metrics,
    )
    callbacks = [Curves(progress, log_every=config.trainer.log_every), progress, quality]
    if config.training.patience:
        mode = "min" if quality.monitor == "loss" else "max"
        callbacks.append(EarlyStopping(quality.monitor, patience=config.training.patience, mode=mode))
    trainer = trainer_for(config, run_dir, [*callbacks, keeper], metrics.get("step", 0))
    start = f"going on with {run_dir} at step {metrics.get('step', 0)}" if resuming else f"training {run_dir}"
    tell_start(config, data, module.model, trainer, start)
    try:
        trainer.fit(
            module, datamodule=data, ckpt_path=str(run_dir / LAST) if resuming else None, weights_only=True
        )
    except Stopped as stop:
        log.info("stopped by signal %d at step %d; saved", stop.signum, trainer.global_step)
        raise
    _finish(config, run_dir, data, module, trainer, keeper, write_metrics)
    return run_dir / "bundle"


def trainer_for(config: "Config", run_dir: Path, callbacks: list[Callback], step: int) -> Trainer:
    c = config.trainer
    board = TensorBoardLogger(
        str(run_dir),
        name="",
        version="tensorboard",
        default_hp_metric=False,
        purge_step=step + 1 if step else None,
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
        plugins=[AtomicCheckpointIO()],
        default_root_dir=str(run_dir),
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _finish(
    config: "Config",
    run_dir: Path,
    data: TranslationData,
    module: TranslationModule,
    trainer: Trainer,
    keeper: Keeper,
    write_metrics: Callable[[dict[str, Any]], None],
) -> None:
    """Try the mean of the last snapshots, and say how it ended. Killed in here, the next start comes back here."""
    quality = keeper.quality
    news = {"step": trainer.global_step, "seconds": round(keeper.clock.seconds, 1)}
    if config.training.average_last:
        snapshots = sorted((run_dir / SNAPSHOTS).glob("*.safetensors"))[-config.training.average_last :]
        mean = bundle.average(load_file(path) for path in snapshots)
        module.best_model.load_state_dict(mean, strict=False)  # tied matrices have one name of several
        if trainer.is_global_zero:
            quality.say(f"the mean of the last {len(snapshots)} snapshots:")
        trainer.validate(module, datamodule=data, verbose=False)
        quality.average = quality.history.pop() | {"snapshots": len(snapshots)}
        if quality.is_best and trainer.is_global_zero:
            bundle.save(_bundle_of(config, data, module.best_model, quality.average), run_dir / "bundle")
    if not trainer.is_global_zero or quality.best is None:
        return
    scores = {f"hp/{key}": quality.best[key] for key in ("bleu", "chrf", "loss") if key in quality.best}
    trainer.logger.log_hyperparams(flatten(plain(config)), scores)  # type: ignore[union-attr]
    trainer.logger.save()  # type: ignore[union-attr]
    (run_dir / "curve.png").write_bytes(quality.curve())
    write_metrics(news | {"finished": keeper.finished or "max_steps"})
    quality.say(f"done; the best model is in {run_dir / 'bundle'} (step {quality.best['step']})")


def _bundle_of(
    config: "Config", data: TranslationData, model: torch.nn.Module, record: dict[str, Any]
) -> bundle.Bundle:
    assert isinstance(model, Transformer)
    return bundle.Bundle(
        model=model,
        model_config=config.model,
        src_tokenizer=data.src_tokenizer,
        tgt_tokenizer=data.tgt_tokenizer,
        src=config.data.src,
        tgt=config.data.tgt,
        meta={
            "name": config.name,
            "validation": record,
            "data": {
                "corpora": [corpus.label for corpus in config.data.corpora],
                "fingerprint": data.fingerprint,
                "train_pairs": data.train_size,
                "notes": list(data.notes),
            },
            "max_length": config.data.max_length,
        },
        search=config.search,
        directions=data.directions,
    )


def tell_start(
    config: "Config", data: TranslationData, model: Transformer, trainer: Trainer, start: str
) -> None:
    """What is trained on what, and what it costs."""
    if not trainer.is_global_zero:
        return
    vocabularies = len(data.src_tokenizer), len(data.tgt_tokenizer)
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    costs = cost.table(
        cost.Cost(config=config.model, src_vocab_size=vocabularies[0], tgt_vocab_size=vocabularies[1]),
        [cost.Shape(*shape) for shape in data.batch_shapes],
        average=bool(config.training.ema),
        width=4 if config.trainer.precision == "32" else 2,
        chunk=chunk_on(config.trainer.accelerator),
    )
    ways = " in both directions" if len(data.directions) > 1 else ""
    line = (
        f"{start}: {data.train_size:,} pairs{ways}, {data.batches_per_epoch:,} batches an epoch, "
        f"{millions:.1f} million parameters, {trainer.precision} on {trainer.num_devices} "
        f"{trainer.accelerator.name()}, vocabulary {vocabularies[0]}/{vocabularies[1]}"
    )
    for told in (line, *costs.splitlines()):
        print(told)
        log.info(told)

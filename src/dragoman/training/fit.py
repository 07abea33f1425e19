"""One run, from its configuration to its bundle: `fit(config)`.

A run is a folder. Running the same command again is always safe: an unfinished run goes on where it stopped, a
finished one says so, a changed configuration is refused by naming what changed.
"""

import itertools
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping
from safetensors.torch import load_file

from dragoman import bundle, cost, durable
from dragoman.data.datamodule import TranslationData
from dragoman.errors import UserError
from dragoman.model.transformer import Transformer
from dragoman.training.callbacks import Clock, Curves, Progress
from dragoman.training.checkpoint import Found, newest
from dragoman.training.exporting import export_bundle
from dragoman.training.keeper import SNAPSHOTS, Keeper
from dragoman.training.loss import chunk_on
from dragoman.training.machine import keep_freed_memory
from dragoman.training.module import TranslationModule
from dragoman.training.pretrained import check_vectors, start_from_vectors
from dragoman.training.quality import Quality
from dragoman.training.run import already_done, flatten, is_first, lock, open_run, plain, quiet, write_json
from dragoman.training.signals import Signals, Stopped
from dragoman.training.trainer import TrainerConfig, resolved, trainer_for

if TYPE_CHECKING:
    from dragoman.config import Config

__all__ = ["TrainerConfig", "fit"]

log = logging.getLogger(__name__)


def fit(config: "Config") -> Path:
    """Train, or go on training, and return the folder of the run's best bundle.

    Raises UserError for what the user can mend, and Stopped when a signal ended the run early (it has saved itself).
    """
    run_dir = Path(config.run_dir)
    config = resolved(config)
    try:
        with Signals() as signals, lock(run_dir):
            return _fit(config, run_dir, signals)
    except Stopped as stop:
        log.info("stopped by signal %d; %s", stop.signum, "saved" if stop.path else "nothing new to save")
        raise
    except OSError as error:
        if error.errno not in durable.REFUSALS:
            raise
        raise durable.refusal(Path(os.fsdecode(error.filename or run_dir)), error) from error


def _fit(config: "Config", run_dir: Path, signals: Signals) -> Path:
    metrics = open_run(config, run_dir)
    quiet(run_dir)
    done = already_done(config, metrics)
    if done:
        print(f"{run_dir} is finished ({done}); its bundle is {run_dir / 'bundle'}")
        return run_dir / "bundle"
    found = newest(run_dir, metrics.get("run"))
    if found is None:
        check_vectors(config.model)
    data = TranslationData(config.data, run_dir, config.seed)
    prepare(config, data)
    if metrics.get("data", data.fingerprint) != data.fingerprint:
        raise UserError(
            f"the data of {run_dir} has changed since the run began; choose another name (name=...) to train on it"
        )
    run = found.run if found else metrics.get("run", secrets.token_hex(8))
    metrics |= {"run": run, "data": data.fingerprint, "notes": list(data.notes)}
    return _train(config, run_dir, data, metrics, found, signals)


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


def _train(
    config: "Config",
    run_dir: Path,
    data: TranslationData,
    metrics: dict[str, Any],
    found: Found | None,
    signals: Signals,
) -> Path:
    module = module_for(config, data, metrics, new=found is None)
    if is_first():
        write_json(run_dir / "metrics.json", metrics)  # from here on the run is one of this configuration
    clock = Clock()
    progress = Progress(clock, max_steps=config.trainer.max_steps, max_seconds=config.trainer.max_seconds)
    module.say = progress.say
    quality = _quality(config, data, progress, metrics)

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
        metrics["run"],
        quality,
        clock,
        signals,
        max_seconds=config.trainer.max_seconds,
        save_minutes=config.trainer.save_minutes,
        n_snapshots=config.trainer.keep_snapshots,
        save_bundle=save_bundle,
        write_metrics=write_metrics,
    )
    watching = [
        Curves(progress, log_every=config.trainer.log_every),
        progress,
        quality,
        *_patience(config, quality),
    ]
    trainer = trainer_for(config, run_dir, [*watching, keeper], found.step if found else 0)
    start = f"going on with {run_dir} at step {found.step}" if found else f"training {run_dir}"
    tell_start(config, data, module.model, trainer, start)
    trainer.fit(module, datamodule=data, ckpt_path=str(found.path) if found else None, weights_only=True)
    _finish(config, run_dir, data, module, trainer, keeper, write_metrics)
    return run_dir / "bundle"


def _quality(config: "Config", data: TranslationData, progress: Progress, metrics: dict[str, Any]) -> Quality:
    return Quality(
        data,
        monitor=config.training.monitor,
        n_pairs=config.trainer.validation_pairs,
        n_samples=config.trainer.samples,
        say=progress.say,
        average=metrics.get("average"),
    )


def _patience(config: "Config", quality: Quality) -> list[EarlyStopping]:
    """What ends the run when nothing gets better, if it shall end then."""
    if not config.training.patience:
        return []
    mode = "min" if quality.monitor == "loss" else "max"
    return [EarlyStopping(quality.monitor, patience=config.training.patience, mode=mode)]


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
    if keeper.owed:  # stopped in the last validation: there is no step left to begin with it
        trainer.validate(module, datamodule=data, verbose=False)
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
    durable.write(run_dir / "curve.png", quality.curve())
    quality.say(f"done; the best model is in {run_dir / 'bundle'} (step {quality.best['step']})")
    with keeper.signals.patiently():  # an import broken off would pass for a library that is not there
        export_bundle(
            run_dir / "bundle", [pair.src for pair in itertools.islice(data.validation, 200)], quality.say
        )
        write_metrics(news | {"finished": keeper.finished or "max_steps"})


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

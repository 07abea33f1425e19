"""A training run (`fit`), or an estimate of its cost (`preflight`).

The same command can be repeated at any time. It resumes an unfinished run, and reports that a finished run is
finished. Changed settings raise a UserError that names them, except those in run.MAY_CHANGE.
"""

import dataclasses
import math
import tempfile
from importlib.util import find_spec
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything

from dragoman.config import Config
from dragoman.data.datamodule import TranslationData
from dragoman.errors import UserError, check_choice, choose
from dragoman.explain.cost import cost_table
from dragoman.metrics import METRICS
from dragoman.model.transformer import Transformer
from dragoman.search.search import SEARCHES
from dragoman.training import checkpoint, recipe, run
from dragoman.training.checkpoint import CheckpointCallback, CheckpointIO, Stopped, StopSignals
from dragoman.training.initial import adapted, output_bias, set_initial_weights
from dragoman.training.module import OPTIMIZERS, SCHEDULES, TranslationModule
from dragoman.training.progress import LOGGERS, ProgressCallback, log_settings, report
from dragoman.training.validation import ValidationCallback
from dragoman.translation.export import export_bundle

__all__ = ["Stopped", "fit", "preflight"]
# Steps that `preflight` times, after as many for warm-up, which begin with the longest batches.
STEPS = 15
LIGHTNING_PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def fit(config: Config) -> Path:
    """Train or resume a run; return the folder of its best bundle.

    Raises UserError for an error that the user can correct, and Stopped after a signal.
    """
    run.configure_memory()
    config, run_dir = resolve(config), Path(config.run_dir)
    with StopSignals() as signals, run.lock(run_dir):
        metrics = run.open_run(config, run_dir)
        run.quiet(run_dir)
        if metrics.get("finished") and metrics.get("limits") == [config.trainer.max_steps, config.trainer.max_time]:
            hint = "" if metrics["finished"] == "early stopping" else "; a larger limit resumes it"
            print(f"{run_dir} is finished ({metrics['finished']} at step {metrics['step']}){hint}")
        else:
            _train(config, run_dir, metrics, signals)
    return run_dir / "bundle"


def _train(config: Config, run_dir: Path, metrics: dict[str, Any], signals: StopSignals) -> None:
    """Train until the end of the run, from the newest checkpoint if there is one."""
    saved = checkpoint.newest(run_dir)
    step = torch.load(saved, weights_only=True, mmap=True, map_location="cpu")["global_step"] if saved else 0
    config, data, module = prepare(config, run_dir, metrics)
    if metrics.get("data", data.fingerprint) != data.fingerprint:
        raise UserError(f"{run_dir}: the data has changed since the run began. Choose another name (name=...)")
    metrics.pop("finished", None)
    progress, validation = ProgressCallback(config.trainer), ValidationCallback(data, config, module)
    saver = CheckpointCallback(validation, progress, signals, metrics)
    if saved is None:
        saver.metrics |= set_initial_weights(config, data, module)
        saver.write()  # metrics.json exists from here on, and so the settings are fixed (run.open_run)
    trainer = make_trainer(config, run_dir, [progress, validation, saver], step)
    announce(f"resuming {run_dir} at step {step}" if saved else f"training {run_dir}", data, module, trainer)
    if saved is None and config.init_from is not None:
        # The scores before the adaptation, as step 0; the original stays the best model until one is better.
        trainer.validate(module, datamodule=data, verbose=False)
        saver.keep(0)
    _fit(trainer, module, data, ckpt_path=saved, weights_only=True)
    if trainer.is_global_zero and validation.best is not None:
        _finish(trainer, saver)
        c = config.trainer
        reason = "max_steps" if trainer.global_step >= (c.max_steps or math.inf) else "max_time"
        reason = "early stopping" if validation.is_exhausted else reason
        if reason == "max_time" and c.max_steps:
            stopped = f"trainer.max_time={c.max_time} ended the run at step {trainer.global_step} of {c.max_steps}"
            report(f"{stopped}, before the end of its schedule; a longer trainer.max_time resumes it")
        saver.write(step=trainer.global_step, finished=reason, limits=[c.max_steps, c.max_time])


def _fit(trainer: Trainer, module: TranslationModule, data: TranslationData, **options: Any) -> None:
    """Train. Raises UserError if a batch needs more memory than a GPU has."""
    try:
        trainer.fit(module, datamodule=data, **options)
    except torch.OutOfMemoryError as error:
        size = data.config.max_tokens
        raise UserError(f"data.max_tokens={size}: no memory for a batch of this size ({error}). Lower it") from error
    finally:
        trainer.fit_loop.teardown()  # ends the data workers; Lightning does not if a validation was stopped


def _finish(trainer: Trainer, saver: CheckpointCallback) -> None:
    """Log the settings, print the result, write the CTranslate2 export."""
    validation, folder, init_from = saver.validation, saver.run_dir / "bundle", saver.config.init_from
    best, history = validation.best or {}, validation.history
    log_settings(trainer, saver.config, {name: best[name] for name in validation.scores})
    if validation.is_exhausted:
        report(f"stopped early: {validation.patience} validations without a better {validation.monitor}")
    if init_from is not None:
        names = [name for name in validation.columns if not name.startswith("exact")]
        changes = ", ".join(f"{name} {history[0][name]:.2f} to {best[name]:.2f}" for name in names)
        report(f"from {init_from} to the best model: {changes}")
    report(f"done; the best model is in {folder} (step {best['step']})")
    try:
        report(export_bundle(folder, [pair.src for pair in saver.data.validation[:200]]))
    except Exception as error:  # any error, because the trained model is already saved
        report(f"no CTranslate2 export: {error}")


def resolve(config: Config) -> Config:
    """Check names (by a model without memory), apply `init_from`, resolve hardware."""
    config = adapted(config)
    choose("training.schedule", config.training.schedule, SCHEDULES)
    choose("training.optimizer", config.training.optimizer, OPTIMIZERS)
    choose("search.kind", config.search.kind, SEARCHES)
    for name in config.trainer.loggers:
        choose("trainer.loggers", name, LOGGERS)
        if name in ("wandb", "mlflow") and find_spec(name) is None:
            raise UserError(f"trainer.loggers={name}: not installed. Run `pip install {name}`")
    for name in config.trainer.metrics:
        metric = choose("trainer.metrics", name, METRICS)
        for direction in config.data.every_direction:
            metric(direction.tgt)  # raises UserError without the tokenizer of its language
    scores = [*config.trainer.metrics, "exact"]
    parts = [name for c in config.data.corpora for name in (c.short_name, c.label.replace("/", "-"))]
    of_parts = [f"{score}_{part}" for part in [*parts, *config.data.every_direction] for score in scores]
    check_choice("training.monitor", config.training.monitor, ["loss", *scores, *of_parts])
    sizes: dict[str, Any] = {k: v for k, v in recipe.size("small").items() if getattr(config.model, k) is None}
    with torch.device("meta"):
        model = Transformer(dataclasses.replace(config.model, **sizes), src_vocab_size=8, tgt_vocab_size=8)
    if model.max_positions is not None and config.data.longest > model.max_positions:
        found = f"data.max_length={config.data.max_length}, which needs {config.data.longest} with special tokens"
        raise UserError(f"model.position.length={model.max_positions}: too few (found {found}). Raise it")
    accelerator = run.accelerator_for(config.trainer.accelerator, config.trainer.devices)
    precision = run.precision_for(config.trainer.precision, accelerator)
    trainer = dataclasses.replace(config.trainer, accelerator=accelerator, precision=precision)
    return dataclasses.replace(config, trainer=trainer)


def prepare(config: Config, run_dir: Path, record: dict[str, Any]) -> tuple[Config, TranslationData, TranslationModule]:
    """Set up seed, data, automatic settings and model.

    record["recipe"] holds the automatic settings for the next start. Raises UserError without validation pairs.
    """
    seed_everything(config.seed, verbose=False)
    max_bucket = config.data.longest if (config.trainer.accelerator, config.trainer.precision) == ("cpu", "bf16") else 0
    data = TranslationData(config.data, run_dir, config.seed, max_bucket=max_bucket)
    config = recipe.complete(config, data, record.setdefault("recipe", {}))
    data.config = config.data
    if not len(data.val_dataloader()):
        raise UserError("data: no validation pairs. Add a corpus with a validation split or set data.validation_size")
    model = Transformer(config.model, src_vocab_size=len(data.src_tokenizer), tgt_vocab_size=len(data.tgt_tokenizer))
    model.projection.bias.copy_(output_bias(data))
    return config, data, TranslationModule(model, config.training, compile=config.trainer.compile)


def make_trainer(config: Config, run_dir: Path, callbacks: list[Callback], step: int) -> Trainer:
    """Build Lightning's Trainer; `step` is the step of the checkpoint, or 0."""
    c = config.trainer
    return Trainer(
        accelerator=c.accelerator,
        devices=c.devices,
        num_nodes=c.nodes,
        precision=LIGHTNING_PRECISION[c.precision],  # type: ignore[arg-type]
        max_epochs=-1,  # for Lightning, the data is one endless epoch
        max_steps=c.max_steps or -1,
        accumulate_grad_batches=config.training.accumulate,
        val_check_interval=c.validate_every * config.training.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=[LOGGERS[name](run_dir, step) for name in c.loggers],
        callbacks=callbacks,
        plugins=[CheckpointIO()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,  # BatchPlan already distributes the batches
    )


def announce(start: str, data: TranslationData, module: TranslationModule, trainer: Trainer) -> None:
    """Print one line about the data, the model and the hardware."""
    millions = sum(p.numel() for p in module.model.parameters()) / 1e6
    directions = " in both directions" if len(data.directions) > 1 else ""
    report(
        f"{start}: {data.train_size:,} pairs{directions}, {data.plan.batches_per_epoch:,} batches an epoch, "
        f"{millions:.1f} million parameters, {trainer.precision} on {trainer.num_devices} "
        f"{trainer.accelerator.name()}, vocabulary {len(data.src_tokenizer)}/{len(data.tgt_tokenizer)}"
    )


def preflight(config: Config) -> None:
    """Print size, computed cost, measured speed, time and memory of the run.

    The run's trainer takes a few steps in a temporary folder, beginning with the longest batches. The total time is
    their number times the seconds of a step; validations and saving are not counted.
    """
    run.configure_memory()
    config = resolve(config)
    with tempfile.TemporaryDirectory(prefix="dragoman-preflight-") as name:
        run.quiet(Path(name))
        config, data, module = prepare(config, Path(name), {})
        n = 2 * STEPS
        c = dataclasses.replace(config.trainer, max_steps=n, validate_every=n + 1, log_every=STEPS, loggers=[])
        progress = ProgressCallback(c)
        trainer = make_trainer(dataclasses.replace(config, trainer=c), Path(name), [progress], 0)
        announce(f"preflight of {config.run_dir}", data, module, trainer)
        if trainer.is_global_zero:
            print(cost_table(module.model, data.plan.shapes))
        _fit(trainer, module, data)
        if trainer.is_global_zero:
            tokens = data.plan.shapes[:, 3].mean() * trainer.accumulate_grad_batches * trainer.world_size
            seconds = tokens / progress.rate
            by_time = (config.trainer.max_seconds or math.inf) / seconds
            steps, end = min((config.trainer.max_steps or math.inf, "max_steps"), (by_time, "max_time"))
            print(f"a step: {seconds:.3f} seconds, {tokens:,.0f} target tokens, {progress.rate:,.0f} tokens/s")
            print(f"{steps:,.0f} steps until trainer.{end}: about {steps * seconds / 60:,.1f} minutes")
            on_gpu = config.trainer.accelerator == "gpu"
            memory = torch.cuda.max_memory_allocated() if on_gpu else 1024 * getrusage(RUSAGE_SELF).ru_maxrss  # KB
            print(f"peak memory: {memory / 1e9:.2f} GB")

"""One run, from its configuration to its bundle: `fit(config)`.

A run is a folder. Running the same command again is always safe: an unfinished run goes on where it stopped, a
finished one says so, a changed configuration is refused by naming what changed.
"""

import dataclasses
import json
import logging
import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import TensorBoardLogger
from safetensors.torch import load_file

from dragoman import bundle
from dragoman.data.datamodule import TranslationData
from dragoman.errors import UserError
from dragoman.model.transformer import Transformer
from dragoman.training.callbacks import Curves, Progress
from dragoman.training.checkpoint import LAST, SNAPSHOTS, AtomicCheckpointIO, Keeper, Stopped
from dragoman.training.machine import PRECISIONS, keep_freed_memory, precision_for
from dragoman.training.module import TranslationModule
from dragoman.training.quality import Quality

if TYPE_CHECKING:
    from dragoman.config import Config

log = logging.getLogger(__name__)

# What may differ between two starts of one run: how long it goes on and what it tells, not what it computes.
MAY_CHANGE = {
    "trainer.max_steps", "trainer.max_time", "trainer.log_every", "trainer.validate_every", "trainer.samples",
    "trainer.validation_pairs", "trainer.save_minutes", "trainer.keep_snapshots", "data.workers", "data.root",
    "data.cache", "run_dir",
}  # fmt: skip


@dataclass(kw_only=True)
class TrainerConfig:
    """What Lightning's Trainer is told: hardware, length, and how often to look up. Steps are optimizer steps."""

    accelerator: str = "auto"  # auto, cpu, gpu, mps
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
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
        if self.precision not in PRECISIONS:
            raise UserError(f"trainer.precision={self.precision}: choose one of {', '.join(PRECISIONS)}")
        for key in ("devices", "nodes", "max_steps", "validate_every", "log_every", "keep_snapshots"):
            if getattr(self, key) < 1:
                raise UserError(f"trainer.{key}={getattr(self, key)}: must be at least 1")
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
    metrics = _open_run(config, run_dir)
    _quiet(run_dir)
    done = _already_done(config, metrics)
    if done:
        print(f"{run_dir} is finished ({done}); its bundle is {run_dir / 'bundle'}")
        return run_dir / "bundle"
    keep_freed_memory()
    seed_everything(config.seed, verbose=False)
    data = TranslationData(config.data, run_dir, config.seed)
    data.prepare()
    if metrics.get("data", data.fingerprint) != data.fingerprint:
        raise UserError(
            f"the data of {run_dir} has changed since the run began; choose another name (name=...) to train on it"
        )
    metrics |= {"data": data.fingerprint, "notes": list(data.notes)}
    _write_json(run_dir / "metrics.json", metrics)
    return _train(config, run_dir, data, metrics)


def _train(config: "Config", run_dir: Path, data: TranslationData, metrics: dict[str, Any]) -> Path:
    model = Transformer(
        config.model, src_vocab_size=len(data.src_tokenizer), tgt_vocab_size=len(data.tgt_tokenizer)
    )
    module = TranslationModule(
        model, config.training, max_steps=config.trainer.max_steps, compile=config.trainer.compile
    )
    progress = Progress(max_steps=config.trainer.max_steps, max_seconds=config.trainer.max_seconds)

    def say(line: str) -> None:
        progress.say(line)
        log.info(line)

    quality = Quality(
        data,
        monitor=config.training.monitor,
        n_pairs=config.trainer.validation_pairs,
        n_samples=config.trainer.samples,
        say=say,
    )

    def write_metrics(news: dict[str, Any]) -> None:
        best = {"best": quality.best, "validations": quality.history, "train": module.measured}
        _write_json(run_dir / "metrics.json", metrics | news | best)

    def save_bundle(best: torch.nn.Module, record: dict[str, Any]) -> None:
        bundle.save(_bundle_of(config, data, best, record), run_dir / "bundle")

    keeper = Keeper(
        run_dir,
        quality,
        max_seconds=config.trainer.max_seconds,
        save_minutes=config.trainer.save_minutes,
        n_snapshots=config.trainer.keep_snapshots,
        save_bundle=save_bundle,
        write_metrics=write_metrics,
    )
    progress.keeper_seconds = lambda: keeper.seconds
    callbacks = [Curves(progress, log_every=config.trainer.log_every), progress, quality]
    if config.training.patience:
        mode = "min" if config.training.monitor == "loss" else "max"
        callbacks.append(EarlyStopping(config.training.monitor, patience=config.training.patience, mode=mode))
    trainer = _trainer(config, run_dir, [*callbacks, keeper], metrics.get("step", 0))
    checkpoint = run_dir / LAST
    resuming = checkpoint.exists()
    start = f"going on with {run_dir} at step {metrics.get('step', 0)}" if resuming else f"training {run_dir}"
    _tell_start(config, data, model, trainer, start)
    try:
        trainer.fit(
            module, datamodule=data, ckpt_path=str(checkpoint) if resuming else None, weights_only=True
        )
    except Stopped as stop:
        log.info("stopped by signal %d at step %d; saved", stop.signum, trainer.global_step)
        raise
    _finish(config, run_dir, data, module, trainer, quality, write_metrics)
    return run_dir / "bundle"


def _trainer(config: "Config", run_dir: Path, callbacks: list[Callback], step: int) -> Trainer:
    c = config.trainer
    accelerator = c.accelerator
    if accelerator == "auto":
        accelerator = (
            "gpu" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
    board = TensorBoardLogger(
        str(run_dir), name="", version="tensorboard", purge_step=step + 1 if step else None
    )
    board.log_hyperparams(flatten(plain(config)))
    return Trainer(
        accelerator=accelerator,
        devices=c.devices,
        num_nodes=c.nodes,
        strategy=c.strategy,
        precision=precision_for(c.precision, accelerator),  # type: ignore[arg-type]
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
    quality: Quality,
    write_metrics: Any,
) -> None:
    """Try the mean of the last snapshots, and say how it ended."""
    k = config.training.average_last
    if k and trainer.is_global_zero:
        snapshots = sorted((run_dir / SNAPSHOTS).glob("step-*.safetensors"))[-k:]
        module.best_model.load_state_dict(
            bundle.average([load_file(path) for path in snapshots]), strict=False
        )
        quality.say(f"the mean of the last {len(snapshots)} snapshots:")
        trainer.validate(module, datamodule=data, verbose=False)
        if quality.is_best:
            bundle.save(_bundle_of(config, data, module.best_model, quality.history[-1]), run_dir / "bundle")
    if trainer.is_global_zero and quality.best is not None:
        done = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
        write_metrics({key: done[key] for key in ("step", "seconds", "finished") if key in done})
        scores = {f"hp/{key}": quality.best[key] for key in ("bleu", "chrf", "loss") if key in quality.best}
        trainer.logger.log_hyperparams(flatten(plain(config)), scores)  # type: ignore[union-attr]
        trainer.logger.save()  # type: ignore[union-attr]
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
                "fingerprint": data.fingerprint,
                "train_pairs": data.train_size,
                "notes": list(data.notes),
            },
            "max_length": config.data.max_length,
        },
        search=config.search,
    )


def _open_run(config: "Config", run_dir: Path) -> dict[str, Any]:
    """Make the run's folder, or recognise it; its metrics so far."""
    saved = run_dir / "config.yaml"
    if run_dir.exists() and not run_dir.is_dir():
        raise UserError(f"{run_dir} is a file; a run needs a folder: choose another name (name=...)")
    if saved.exists():
        _refuse_changes(yaml.safe_load(saved.read_text(encoding="utf-8")), plain(config), run_dir)
    elif run_dir.exists() and any(run_dir.iterdir()):
        raise UserError(
            f"{run_dir} is not empty and is not a run of ours (it has no config.yaml): choose another name (name=...)"
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    _write(saved, yaml.safe_dump(plain(config), allow_unicode=True, sort_keys=False))
    metrics = run_dir / "metrics.json"
    return json.loads(metrics.read_text(encoding="utf-8")) if metrics.exists() else {}


def _refuse_changes(old: dict[str, Any], new: dict[str, Any], run_dir: Path) -> None:
    before, now = flatten(old), flatten(new)
    changed = [
        f"{key} (was {before.get(key)}, now {now.get(key)})"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key not in MAY_CHANGE
    ]
    if changed:
        raise UserError(
            f"{run_dir} was begun with another configuration: {'; '.join(changed)}. Choose another name (name=...), "
            "or give the old values to go on"
        )


def _already_done(config: "Config", metrics: dict[str, Any]) -> str | None:
    """In words, if there is nothing left to do."""
    reason, step, seconds = metrics.get("finished"), metrics.get("step", 0), metrics.get("seconds", 0.0)
    if reason == "max_steps" and step >= config.trainer.max_steps:
        return f"all {step} steps done; trainer.max_steps=N with a larger N goes on"
    if (
        reason == "max_time"
        and config.trainer.max_seconds is not None
        and seconds >= config.trainer.max_seconds
    ):
        return f"its {seconds / 60:.0f} minutes are used up at step {step}; a longer trainer.max_time goes on"
    if reason == "early stopping":
        return f"stopped early at step {step}: {config.training.patience} validations brought nothing better"
    return None


def _tell_start(
    config: "Config", data: TranslationData, model: Transformer, trainer: Trainer, start: str
) -> None:
    if trainer.is_global_zero:
        millions = sum(p.numel() for p in model.parameters()) / 1e6
        line = (
            f"{start}: {data.train_size:,} pairs, {data.batches_per_epoch:,} batches an epoch, "
            f"{millions:.1f} million parameters, {trainer.precision} on {trainer.num_devices} "
            f"{trainer.accelerator.name()}, vocabulary {len(data.src_tokenizer)}/{len(data.tgt_tokenizer)}"
        )
        print(line)
        log.info(line)


def _quiet(run_dir: Path) -> None:
    """Lightning's own chatter goes to nobody; what happens goes to train.log as well."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
    handler = logging.FileHandler(run_dir / "train.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    package = logging.getLogger("dragoman")
    package.setLevel(logging.INFO)
    package.propagate = False
    package.handlers = [handler]


def plain(config: Any) -> dict[str, Any]:
    """The configuration as plain dicts, lists and values."""
    return dataclasses.asdict(config)


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """{"data": {"src": "zh"}} -> {"data.src": "zh"}; lists count as values."""
    if not isinstance(tree, dict):
        return {
            prefix: tree if isinstance(tree, (int, float, str, bool)) or tree is None else json.dumps(tree)
        }
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _write_json(path: Path, content: dict[str, Any]) -> None:
    _write(path, json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)

"""The folder of a run: its lock, its settings, its record."""

import json
import logging
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml
from filelock import FileLock, Timeout
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Trainer

from dragoman import files
from dragoman.config import Config
from dragoman.errors import UserError

T = TypeVar("T")
# Settings that may differ between two starts of one run: its length, what it logs and saves, where its files are.
MAY_CHANGE = {
    "trainer.max_steps", "trainer.max_time", "trainer.log_every", "trainer.loggers", "trainer.validate_every",
    "trainer.samples", "trainer.save_minutes", "data.workers", "data.root", "data.cache", "run_dir",
}  # fmt: skip
LOCK_SECONDS = 12.0  # worker processes of a killed run hold its lock until they notice


def is_first() -> bool:
    """Whether this is the process that writes, of all that train together."""
    return not getattr(rank_zero_only, "rank", 0)


def lock(run_dir: Path) -> AbstractContextManager[object]:
    """Allow one training per folder. Raises UserError for a second one."""
    if not is_first():
        return nullcontext()
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(run_dir.with_name(f".{run_dir.name}.lock")).acquire(timeout=LOCK_SECONDS)
    except Timeout:
        raise UserError(f"{run_dir}: another process trains there. Wait, or choose another name (name=...)") from None


def open_run(config: Config, run_dir: Path) -> dict[str, Any]:
    """Make the run's folder, or recognise it, and return its metrics so far.

    Raises UserError when the folder is something else, or when the settings of a run that began have changed.
    """
    saved, metrics = run_dir / "config.yaml", run_dir / "metrics.json"
    record = json.loads(metrics.read_text(encoding="utf-8")) if metrics.exists() else {}
    if not is_first():
        return record
    run_dir.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in run_dir.iterdir()}
    # data.json: another process of this run may have begun to prepare the data.
    if names and not names & {"config.yaml", "data.json"}:
        raise UserError(f"{run_dir}: not empty and not a run. Choose another name (name=...)")
    if record:
        # A setting that is younger than the run had its default then.
        old = flatten(asdict(Config())) | flatten(yaml.safe_load(saved.read_text(encoding="utf-8")))
        new = flatten(asdict(config))
        # A setting that is gone has no effect.
        keys = sorted(key for key in new if old.get(key) != new[key] and key not in MAY_CHANGE)
        if keys:
            changes = "; ".join(f"{key} (was {json.dumps(old.get(key))}, now {json.dumps(new[key])})" for key in keys)
            hint = "Choose another name (name=...), or give the old values to resume"
            raise UserError(f"{run_dir}: the run began with other settings: {changes}. {hint}")
    files.write(saved, yaml.safe_dump(asdict(config), allow_unicode=True, sort_keys=False).encode())
    return record


def gather(trainer: Trainer, value: T) -> list[T]:
    """Return the values of all processes of a training, by rank."""
    values = [value] * trainer.world_size
    if trainer.world_size > 1:
        torch.distributed.all_gather_object(values, value)
    return values


def quiet(run_dir: Path) -> None:
    """Silence Lightning, and write the package's log to train.log."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
    if is_first():
        handler = logging.FileHandler(run_dir / "train.log", encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        package = logging.getLogger("dragoman")
        package.setLevel(logging.INFO)
        package.propagate = False
        package.handlers = [handler]


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"data": {"src": "zh"}} -> {"data.src": "zh"}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat

"""The folder of a run: whose it is, how far it got, whether it may go on.

Running the same command again is always safe: this file decides what that means. It knows configurations as plain
trees of values, and refuses to know what they configure.
"""

import dataclasses
import json
import logging
import os
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.config import Config

# What may differ between two starts of one run: how long it goes on and what it tells, not what it computes.
MAY_CHANGE = {
    "trainer.max_steps", "trainer.max_time", "trainer.log_every", "trainer.validate_every", "trainer.samples",
    "trainer.validation_pairs", "trainer.save_minutes", "trainer.keep_snapshots", "data.workers", "data.root",
    "data.cache", "run_dir",
}  # fmt: skip


def open_run(config: "Config", run_dir: Path) -> dict[str, Any]:
    """Make the run's folder, or recognise it; its metrics so far."""
    saved = run_dir / "config.yaml"
    if run_dir.exists() and not run_dir.is_dir():
        raise UserError(f"{run_dir} is a file; a run needs a folder: choose another name (name=...)")
    metrics = run_dir / "metrics.json"
    if metrics.exists() and saved.exists():
        _refuse_changes(yaml.safe_load(saved.read_text(encoding="utf-8")), plain(config), run_dir)
    elif saved.exists():  # it never came to training, so there is nothing that a change could spoil
        (run_dir / "data.json").unlink(missing_ok=True)
    elif run_dir.exists() and any(run_dir.iterdir()):
        raise UserError(
            f"{run_dir} is not empty and is not a run of ours (it has no config.yaml): choose another name (name=...)"
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    _write(saved, yaml.safe_dump(plain(config), allow_unicode=True, sort_keys=False))
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


def already_done(config: "Config", metrics: dict[str, Any]) -> str | None:
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


def quiet(run_dir: Path) -> None:
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


def write_json(path: Path, content: dict[str, Any]) -> None:
    _write(path, json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)

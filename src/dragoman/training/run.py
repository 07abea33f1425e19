"""The folder of a run: whose it is, how far it got, whether it may go on.

Running the same command again is always safe: this file decides what that means. It knows configurations as plain
trees of values, and refuses to know what they configure.
"""

import contextlib
import dataclasses
import json
import logging
import os
import socket
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from filelock import FileLock, Timeout
from lightning.fabric.utilities.rank_zero import rank_zero_only

from dragoman import durable
from dragoman.errors import UserError
from dragoman.untrusted import read_json, read_yaml

if TYPE_CHECKING:
    from dragoman.config import Config

# What may differ between two starts of one run: how long it goes on and what it tells, not what it computes.
MAY_CHANGE = {
    "trainer.max_steps", "trainer.max_time", "trainer.log_every", "trainer.validate_every", "trainer.samples",
    "trainer.save_minutes", "data.workers", "data.root", "data.cache", "run_dir",
}  # fmt: skip
# What metrics.json tells the next start.
_TOLD: dict[str, Any] = {"step": int, "seconds": (int, float), "finished": str, "data": str, "run": str}
_TOLD["average"] = (dict, type(None))
_MEASURED = ("step", "loss", "bleu", "chrf", "exact")  # the numbers that a validation's record may have
_FIRST_SECONDS = 30.0  # the first process needs no longer to make a run's folder
_ORPHAN_SECONDS = 20.0  # a DataLoader's workers look every 5 seconds whether their parent lives

# What was done before there was such a setting, where that is not its default.
BEFORE = {"data.packing": "off"}


def lock(run_dir: Path) -> contextlib.AbstractContextManager[object]:
    """Held while training, by the first process of a run: two runs in one folder would spoil each other.

    The system drops a lock whose holder died, wherever its file lies; who holds it is written beside it, in
    .NAME.holder. Raises UserError naming the holder.
    """
    if not is_first():
        return contextlib.nullcontext()
    if run_dir.exists() and not run_dir.is_dir():
        raise UserError(f"{run_dir} is a file; a run needs a folder: choose another name (name=...)")
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(run_dir.with_name(f".{run_dir.name}.lock"))
    holder = run_dir.with_name(f".{run_dir.name}.holder")
    try:
        taken = held.acquire(timeout=_ORPHAN_SECONDS if _died(holder) else 0)
    except Timeout:
        who = _holder(holder)
        known = f" (process {who[0]} on {who[1]})" if who else ""
        raise UserError(
            f"another process is training in {run_dir}{known}: wait for it, or choose another name"
        ) from None
    durable.write(holder, f"{os.getpid()} {socket.gethostname()}\n".encode())
    return taken  # not `held`: entering it would take it a second time, and leaving would not let go


def _holder(path: Path) -> tuple[int, str] | None:
    """Process and host that took the lock last."""
    with contextlib.suppress(OSError, ValueError):
        pid, host = path.read_text(encoding="utf-8").split()
        return int(pid), host
    return None


def _died(path: Path) -> bool:
    """Whether it was here and is no more: then worker processes it left behind hold the lock, and will notice soon."""
    pid, host = _holder(path) or (os.getpid(), "")
    if host != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # somebody else's: it lives
        return False
    return False


def is_first() -> bool:
    """Whether this process does the writing, of all that train together."""
    return not getattr(rank_zero_only, "rank", 0)


def open_run(config: "Config", run_dir: Path) -> dict[str, Any]:
    """Make the run's folder, or recognise it; its metrics so far."""
    saved, metrics = run_dir / "config.yaml", run_dir / "metrics.json"
    if not is_first():
        _wait_for(saved)
        run_dir.mkdir(parents=True, exist_ok=True)  # on a machine that does not share the first one's disk
    so_far = _metrics(metrics) if metrics.exists() else {}
    if not is_first():
        return so_far
    old = _read(saved) if saved.exists() else None
    begun = run_dir / "config.yaml.part"  # all there is when it was killed in its first moments
    if (
        run_dir.exists()
        and any(path != begun for path in run_dir.iterdir())
        and not (isinstance(old, dict) and old.keys() == plain(config).keys())
    ):
        raise UserError(f"{run_dir} is not empty and is not a run of ours: choose another name (name=...)")
    if old is not None and (metrics.exists() or (run_dir / "last.ckpt").exists()):
        # A setting younger than the run defaults to what was done before there was such a setting.
        _refuse_changes(
            flatten(plain(type(config)())) | BEFORE | flatten(old), flatten(plain(config)), run_dir
        )
    elif old is not None:  # it never came to training, so there is nothing that a change could spoil
        (run_dir / "data.json").unlink(missing_ok=True)
    run_dir.mkdir(parents=True, exist_ok=True)
    for place in (run_dir, run_dir / "snapshots"):
        durable.sweep(place)
    durable.write(saved, yaml.safe_dump(plain(config), allow_unicode=True, sort_keys=False).encode())
    return so_far


def _wait_for(path: Path) -> None:
    """What others write into a folder before the first process has looked at it would not seem to be ours."""
    deadline = time.monotonic() + _FIRST_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def _read(path: Path) -> Any:
    try:
        return read_yaml(path) if path.suffix == ".yaml" else read_json(path.parent, path.name)
    except UserError as error:
        raise UserError(f"{error}; restore it, or choose another name") from None


def _metrics(path: Path) -> dict[str, Any]:
    """What it says of itself to the next start is of the types that a run writes."""
    found = _read(path)
    wrong = [key for key, kinds in _TOLD.items() if key in found and not isinstance(found[key], kinds)]
    average = found.get("average")
    if isinstance(average, dict) and not (
        {"step", "loss"} <= average.keys()
        and all(isinstance(average.get(key, 0), int | float) for key in _MEASURED)
    ):
        wrong.append("average")
    if wrong:
        raise UserError(f"{path}: '{wrong[0]}' is not what a run writes; restore it, or choose another name")
    return found


def _refuse_changes(before: dict[str, Any], now: dict[str, Any], run_dir: Path) -> None:
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
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk stops what matters more
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    package = logging.getLogger("dragoman")
    package.setLevel(logging.INFO)
    package.propagate = False
    package.handlers = [handler]
    threading.excepthook = _told_elsewhere


def _told_elsewhere(failure: threading.ExceptHookArgs) -> None:
    """What the disk refuses to TensorBoard's thread is told to the run, which ends in one line; no traceback beside."""
    if getattr(failure.exc_value, "errno", None) not in durable.REFUSALS:
        threading.__excepthook__(failure)


def plain(config: Any) -> dict[str, Any]:
    """The configuration of a run as plain dicts, lists and values; `preflight` asks about it and is no part of it."""
    return {key: value for key, value in dataclasses.asdict(config).items() if key != "preflight"}


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
    durable.write(path, (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode())

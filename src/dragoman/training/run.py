"""Surroundings of a run: folder, processes, log, hardware and versions."""

import ctypes
import json
import logging
import os
import platform
import re
import shlex
import subprocess
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout
from lightning.fabric.utilities.rank_zero import rank_zero_only

from dragoman import files
from dragoman.config import Config
from dragoman.errors import UserError

# Settings that may differ between two starts of one run: its length, what it logs and saves, and where its files are.
MAY_CHANGE = {
    "trainer.max_steps", "trainer.max_time", "trainer.samples", "trainer.loggers", "trainer.validate_every", "run_dir",
    "trainer.log_every", "trainer.save_minutes", "trainer.keep_snapshots", "data.workers", "data.root", "data.cache",
}  # fmt: skip
CPUINFO = Path("/proc/cpuinfo").read_text(errors="replace") if os.path.exists("/proc/cpuinfo") else ""
LIBC = ctypes.CDLL(None)  # glibc on Linux
LOCK_SECONDS = 12.0  # worker processes of a killed run hold its lock until they exit


def is_first() -> bool:
    """Whether this process is rank 0, which writes the results of the run."""
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
    """Create or open the run's folder, and return its metrics so far.

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
        # A setting added since the run began had its default.
        old = flatten(asdict(Config())) | flatten(yaml.safe_load(saved.read_text(encoding="utf-8")))
        new = flatten(asdict(config))
        # A setting that is gone has no effect.
        keys = sorted(key for key in new if old.get(key) != new[key] and key not in MAY_CHANGE)
        if keys:
            show = partial(json.dumps, ensure_ascii=False)
            for tree in (old, new):  # of a corpus, what is set
                tree["data.corpora"] = [{k: v for k, v in c.items() if v} for c in tree["data.corpora"]]
            changes = "; ".join(f"{key} (was {show(old.get(key))}, now {show(new[key])})" for key in keys)
            hint = "Choose another name (name=...), or give the old values to resume"
            raise UserError(f"{run_dir}: the run began with other settings: {changes}. {hint}")
    files.write(saved, yaml.safe_dump(asdict(config), allow_unicode=True, sort_keys=False).encode())
    return record


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


def accelerator_for(choice: str, devices: int) -> str:
    """Resolve trainer.accelerator. Raises UserError for more devices than exist."""
    n_gpus = torch.cuda.device_count()
    if choice == "auto":
        choice = "gpu" if n_gpus else "mps" if torch.backends.mps.is_available() else "cpu"
    if choice == "gpu" and devices > n_gpus:
        raise UserError(f"trainer.devices={devices}: torch finds {n_gpus} GPUs. Use fewer, or trainer.accelerator=cpu")
    return choice


def precision_for(choice: str, accelerator: str) -> str:
    """Resolve trainer.precision: auto is bf16 where the hardware has it, else 32."""
    if choice == "fp16" and accelerator == "cpu":
        raise UserError("trainer.precision=fp16: only on a GPU. Choose auto, bf16 or 32")
    if choice != "auto":
        return choice
    gpu_has_bf16 = accelerator == "gpu" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if gpu_has_bf16 or (accelerator == "cpu" and cpu_has_bf16()) else "32"


def cpu_has_bf16() -> bool:
    """Whether this CPU has bf16 products (AMX, AVX512-BF16); else fp32 is faster."""
    return not {"amx_bf16", "avx512_bf16"}.isdisjoint(CPUINFO.split())


def provenance() -> dict[str, str]:
    """Describe the hardware, the versions and the commit that a run is made with."""
    model = re.search(r"^model name\s*: (.*)", CPUINFO, re.MULTILINE)
    versions = [f"{name} {version(name)}" for name in ("dragoman", "torch", "lightning", "sentencepiece", "sacrebleu")]
    root = Path(__file__).parents[3]
    git = ["git", f"--git-dir={root}/.git", f"--work-tree={root}", "describe", "--always", "--dirty"]
    # It fails without git, and outside of a checkout.
    has_failed, commit = subprocess.getstatusoutput(shlex.join([*git, "--exclude=*", "--abbrev=12"]))
    return {
        "cpu": f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores",
        "threads": str(torch.get_num_threads()),
        "gpu": ", ".join(torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())),
        "versions": ", ".join([*versions, f"Python {platform.python_version()}"]),
        "commit": "" if has_failed else commit,
    }


def configure_memory() -> None:
    """Configure the memory allocation of glibc and torch.

    glibc keeps what is freed: otherwise large buffers are faulted in again at every step. torch takes huge pages; it
    reads the variable when it allocates its first tensor. scripts/README.md "Memory" has the figures.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if hasattr(LIBC, "mallopt"):
        LIBC.mallopt(-4, 0)  # M_MMAP_MAX
        LIBC.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        LIBC.mallopt(-2, 64 * 2**20)  # M_TOP_PAD: bytes that malloc takes from the system at a time

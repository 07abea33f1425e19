"""Hardware: which accelerator, which precision, how much memory; versions."""

import ctypes
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

from dragoman.errors import UserError


def accelerator_for(choice: str, devices: int) -> str:
    """Resolve trainer.accelerator. Raises UserError for more devices than exist."""
    gpus, mps = torch.cuda.device_count(), int(torch.backends.mps.is_available())
    if choice == "auto":
        choice = "gpu" if gpus else "mps" if mps else "cpu"
    available = {"gpu": gpus, "mps": mps}.get(choice, devices)  # any number of processes share a CPU
    if devices > available:
        found = f"torch finds {available} here (found trainer.devices={devices})"
        raise UserError(f"trainer.accelerator={choice}: {found}. Set fewer, or trainer.accelerator=cpu")
    return choice


def precision_for(choice: str, accelerator: str) -> str:
    """Resolve trainer.precision: auto is bf16 where the hardware has it, else 32."""
    if choice != "auto":
        return choice
    if accelerator == "gpu":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "32"
    return "bf16" if accelerator == "cpu" and cpu_has_bf16() else "32"


def cpu_has_bf16() -> bool:
    """Whether this CPU has bf16 products (AMX, AVX512-BF16); else fp32 is faster."""
    return not {"amx_bf16", "avx512_bf16"}.isdisjoint(_cpuinfo().split())


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text(errors="replace") if path.exists() else ""


def provenance() -> dict[str, str]:
    """Describe the hardware, the versions and the commit that a run is made with."""
    model = re.search(r"^model name\s*: (.*)", _cpuinfo(), re.MULTILINE)
    packages = ("dragoman", "torch", "lightning", "sentencepiece", "sacrebleu")
    versions = [f"{name} {version(name)}" for name in packages]
    return {
        "cpu": f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores",
        "threads": str(torch.get_num_threads()),
        "gpu": ", ".join(torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())),
        "versions": ", ".join([*versions, f"Python {platform.python_version()}"]),
        "commit": _commit(),
    }


def _commit() -> str:
    """Return the git commit of a checkout, "-dirty" if files differ from it, or ""."""
    root = Path(__file__).parents[3]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def configure_memory() -> None:
    """Set what glibc, torch and oneDNN do with memory.

    glibc keeps what is freed: otherwise large buffers are faulted in again at every step. torch takes huge pages; it
    reads the variable when it allocates its first tensor. oneDNN, which multiplies in bf16 on a CPU, compiles a product
    for each shape and by default keeps 1,024 of them, which need gigabytes. 32 are as fast, because few batches have
    the same shape. scripts/README.md "Memory" has the figures.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    if sys.platform.startswith("linux") and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        m_mmap_max, m_trim_threshold, m_top_pad = -4, -1, -2
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**31 - 1)
        libc.mallopt(m_top_pad, 64 * 2**20)  # bytes that malloc takes from the system at a time


def peak_memory(accelerator: str) -> int:
    """Return the peak in bytes: of torch's tensors on a GPU, else of this process."""
    if accelerator == "gpu":
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak

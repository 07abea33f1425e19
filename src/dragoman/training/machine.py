"""Hardware: which accelerator, which precision, how much memory; versions."""

import ctypes
import os
import platform
import re
import resource
import shlex
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

from dragoman.errors import UserError


def accelerator_for(choice: str, devices: int) -> str:
    """Resolve trainer.accelerator. Raises UserError for more devices than exist."""
    n_gpus = torch.cuda.device_count()
    if choice == "auto":
        choice = "gpu" if n_gpus else "mps" if torch.backends.mps.is_available() else "cpu"
    if choice == "gpu" and devices > n_gpus:
        found = f"torch finds {n_gpus} here (found trainer.devices={devices})"
        raise UserError(f"trainer.accelerator=gpu: {found}. Set fewer, or trainer.accelerator=cpu")
    return choice


def precision_for(choice: str, accelerator: str) -> str:
    """Resolve trainer.precision: auto is bf16 where the hardware has it, else 32."""
    if choice != "auto":
        return choice
    gpu_has_bf16 = accelerator == "gpu" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if gpu_has_bf16 or (accelerator == "cpu" and cpu_has_bf16()) else "32"


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
    """Set what glibc, torch and oneDNN do with memory.

    glibc keeps what is freed: otherwise large buffers are faulted in again at every step. torch takes huge pages; it
    reads the variable when it allocates its first tensor. oneDNN, which multiplies in bf16 on a CPU, compiles a product
    for each shape and by default keeps 1,024 of them, which need gigabytes. 32 are as fast, because few batches have
    the same shape. scripts/README.md "Memory" has the figures.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        m_mmap_max, m_trim_threshold, m_top_pad = -4, -1, -2
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**31 - 1)
        libc.mallopt(m_top_pad, 64 * 2**20)  # bytes that malloc takes from the system at a time


def peak_memory(accelerator: str) -> int:
    """Return the peak in bytes: of torch's tensors on a GPU, else of this process."""
    if accelerator == "gpu":
        return torch.cuda.max_memory_allocated()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS would count bytes

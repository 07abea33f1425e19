"""Hardware: which accelerator, which precision, how much memory."""

import ctypes
import resource
import sys
from pathlib import Path

import torch

from dragoman.errors import UserError

_MALLOC_TOP_PAD = 64 * 2**20  # bytes that malloc takes from the system at a time


def accelerator_for(choice: str, devices: int) -> str:
    """Resolve trainer.accelerator. Raises UserError for more devices than exist."""
    gpus, mps = torch.cuda.device_count(), int(torch.backends.mps.is_available())
    if choice == "auto":
        choice = "gpu" if gpus else "mps" if mps else "cpu"
    available = {"gpu": gpus, "mps": mps}.get(choice, devices)  # any number of processes share a CPU
    if devices > available:
        raise UserError(
            f"trainer.accelerator={choice}: torch finds {available} here (found trainer.devices={devices}). Set "
            "trainer.accelerator=cpu, or fewer devices"
        )
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
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text(errors="replace").split() if cpuinfo.exists() else []
    return "amx_bf16" in flags or "avx512_bf16" in flags


def keep_freed_memory() -> None:
    """Make glibc keep freed memory; does nothing without glibc.

    Otherwise large buffers are faulted in again at every step, which takes half of its time.
    """
    if sys.platform.startswith("linux") and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        m_mmap_max, m_trim_threshold, m_top_pad = -4, -1, -2
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**31 - 1)
        libc.mallopt(m_top_pad, _MALLOC_TOP_PAD)


def peak_memory(accelerator: str) -> int:
    """Return the peak in bytes: of torch's tensors on a GPU, else of this process."""
    if accelerator == "gpu":
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak

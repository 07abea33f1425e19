"""What this machine can do, and how to ask it nicely. Knows nothing of models or data."""

import contextlib
import ctypes
import re
import resource
import sys
from pathlib import Path

import torch

from dragoman.errors import UserError

ACCELERATORS = ("auto", "cpu", "gpu", "mps")
LIGHTNING_PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
PRECISIONS = ("auto", *LIGHTNING_PRECISION)
STRATEGIES = ("auto", "ddp")
_KEEP = 64 * 2**20  # bytes that malloc may take from the system at a time


def accelerator_for(wanted: str, devices: int) -> str:
    """What "auto" is here: "gpu", "mps" or "cpu". Raises UserError for more than there is."""
    gpus, mps = torch.cuda.device_count(), int(torch.backends.mps.is_available())
    if wanted == "auto":
        wanted = "gpu" if gpus else "mps" if mps else "cpu"
    there_are = {"gpu": gpus, "mps": mps}.get(wanted, devices)  # a CPU can be divided among any number
    if not there_are:
        raise UserError(f"trainer.accelerator={wanted}: torch finds none here; use auto or cpu")
    if devices > there_are:
        raise UserError(
            f"trainer.devices={devices}: torch finds {there_are} here (trainer.accelerator={wanted})"
        )
    return wanted


def precision_for(wanted: str, accelerator: str) -> str:
    """What "auto" is here: "bf16" where the hardware multiplies bf16, else "32"."""
    if wanted != "auto":
        return wanted
    if accelerator == "gpu":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "32"
    return "bf16" if accelerator == "cpu" and cpu_has_bf16() else "32"


def cpu_has_bf16() -> bool:
    """Whether this CPU multiplies bf16 in hardware (AMX or AVX512-BF16). Elsewhere bf16 is slower than fp32."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return False
    return " amx_bf16" in flags or " avx512_bf16" in flags


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory: big buffers are otherwise unmapped and faulted in again at every step.

    Worth half of the speed of an fp32 step on two cores. Does nothing elsewhere than on Linux with glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another libc
        return
    for parameter, value in (
        (-4, 0),
        (-1, 2**31 - 1),
        (-2, _KEEP),
    ):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
        mallopt(parameter, value)


def forget_peak_memory() -> None:
    """Let `peak_memory` tell the most from here on, where the system can do so."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):  # not Linux, or not allowed
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(accelerator: str) -> int:
    """The most there was, in bytes: of torch's tensors on the GPU, or else of all that this process held in memory."""
    if accelerator == "gpu":
        return torch.cuda.max_memory_allocated()
    with contextlib.suppress(OSError, AttributeError):
        status = Path("/proc/self/status").read_text()
        return 1024 * int(re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)[1])  # type: ignore[index]
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most

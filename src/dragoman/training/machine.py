"""What this machine can do, and how to ask it nicely. Knows nothing of models or data."""

import ctypes
import sys

import torch

PRECISIONS = ("auto", "32", "bf16", "fp16")
_KEEP = 64 * 2**20  # bytes that malloc may take from the system at a time


def precision_for(wanted: str, accelerator: str) -> str:
    """Lightning's name for `wanted`: "auto" is bf16-mixed where products in bf16 have units of their own, else fp32.

    `accelerator` is "gpu", "mps" or "cpu".
    """
    if wanted == "auto":
        fast = torch.cuda.is_bf16_supported() if accelerator == "gpu" else cpu_has_bf16()
        return "bf16-mixed" if fast and accelerator != "mps" else "32-true"
    return {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}[wanted]


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

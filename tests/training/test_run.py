"""Choices that depend on the hardware."""

import pytest
import torch

from dragoman.errors import UserError
from dragoman.training import run
from dragoman.training.run import accelerator_for, precision_for


def test_auto_is_what_torch_finds():
    gpu, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    assert accelerator_for("auto", 1) == ("gpu" if gpu else "mps" if mps else "cpu")
    assert accelerator_for("cpu", 4) == "cpu"


def test_auto_precision_is_bf16_where_the_cpu_has_it(monkeypatch):
    for flag, precision in (("avx512_bf16", "bf16"), ("amx_bf16", "bf16"), ("avx512f", "32")):
        monkeypatch.setattr(run, "CPUINFO", f"flags : fpu {flag} sse")
        assert precision_for("auto", "cpu") == precision
    assert precision_for("fp16", "gpu") == "fp16"
    with pytest.raises(UserError, match="only on a GPU"):
        precision_for("fp16", "cpu")

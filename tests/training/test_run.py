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


@pytest.mark.parametrize(("has_bf16", "precision"), [(True, "bf16"), (False, "32")])
def test_auto_precision_is_bf16_where_the_cpu_has_it(has_bf16, precision, monkeypatch):
    monkeypatch.setattr(run, "cpu_has_bf16", lambda: has_bf16)
    assert precision_for("auto", "cpu") == precision
    assert precision_for("fp16", "gpu") == "fp16"
    with pytest.raises(UserError, match="only on a GPU"):
        precision_for("fp16", "cpu")

"""Two processes, one run: they share the work and arrive where one process would have (gloo, on the CPU)."""

import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.slow
WORK = """
import sys
from dragoman.compose import compose
from dragoman.training.fit import Stopped, fit
try:
    fit(compose(sys.argv[1:]))
except Stopped as stopped:
    sys.exit(128 + stopped.signum)
"""


@pytest.fixture
def train(tmp_path, corpus):
    """Train in a process of its own, on so many devices; return the folder of the run and what was printed."""

    def train(name, devices, *, max_steps, accumulate=1, patience=0):
        corpora = ",".join(f"{{path: {corpus / part}}}" for part in ("farm", "town"))
        settings = [
            f"name={name}", f"data.corpora=[{corpora}]", "data.tokenizer.vocab_size=330", "data.test_size=0",
            "data.max_tokens=120", "data.max_length=40", f"data.cache={corpus / 'cache'}", "model=tiny", "recipe=none",
            "model.dropout=0.0", "model.score=additive", "training.warmup_steps=4", "training.average_last=2",
            f"training.accumulate={accumulate}", "trainer.accelerator=cpu", f"trainer.devices={devices}",
            "trainer.precision='32'", f"trainer.max_steps={max_steps}", "trainer.validate_every=3",
            "trainer.validation_pairs=7", "trainer.samples=1", f"training.patience={patience}",
        ]  # fmt: skip
        (tmp_path / "work.py").write_text(WORK)
        done = subprocess.run(
            [sys.executable, "work.py", *settings],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("done; the best model is in") == 1, "only the first process speaks"
        return tmp_path / "runs" / name

    return train


def test_two_processes_equal_one_that_accumulates(train, checkpoint_of, metrics_of):
    """A mean of two means would give the tokens of the smaller batch more weight."""
    two, one = train("two", 2, max_steps=6), train("one", 1, max_steps=6, accumulate=2)
    assert metrics_of(two)["train"] == pytest.approx(metrics_of(one)["train"], rel=1e-4)
    losses = [[record["loss"] for record in metrics_of(run)["validations"]] for run in (two, one)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    states = [checkpoint_of(run)["state_dict"] for run in (two, one)]
    for name, weights in states[0].items():
        torch.testing.assert_close(weights, states[1][name], atol=5e-3, rtol=1e-3)


def test_a_resumed_run_of_two_equals_one_that_never_stopped(train, outcome):
    train("broken", 2, max_steps=4, patience=9)
    assert outcome(train("broken", 2, max_steps=6, patience=9)) | {"records": 0} == outcome(
        train("straight", 2, max_steps=6, patience=9)
    ) | {"records": 0}

"""Preflight: the estimated cost of a run, and no files."""

import re
import tempfile

import pytest

from dragoman.training import fit as module
from dragoman.training.fit import preflight


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(module, "STEPS", 2)
    return folder


def test_it_prints_costs_and_a_forecast(runs, temporary, capsys):
    preflight(runs.config("run", trainer={"max_steps": 100_000}))
    out, err = capsys.readouterr()
    assert "cross-attention" in out
    assert "peak memory" in out
    seconds = float(re.search(r"a step: ([\d.]+) seconds", out)[1])
    minutes = float(re.search(r"100,000 steps until trainer\.max_steps: about ([\d.]+) minutes", out)[1])
    assert minutes == pytest.approx(100_000 * seconds / 60, abs=1)
    assert "preflight of " in err
    assert "validation loss" not in err
    assert not (runs.folder / "run").exists()
    assert not list(temporary.iterdir())


def test_a_time_limit_ends_the_forecast(runs, temporary, capsys):
    preflight(runs.config("run", trainer={"max_steps": 10**9, "max_time": "00:00:10:00"}))
    assert "steps until trainer.max_time: about 10.0 minutes" in capsys.readouterr().out

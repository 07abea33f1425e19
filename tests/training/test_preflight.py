"""Preflight: the estimated cost of a run, and no files."""

import tempfile

import pytest

from dragoman.config import TrainerConfig
from dragoman.training import fit as module
from dragoman.training.fit import forecast, preflight


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(module, "STEPS", 2)
    monkeypatch.setattr(module, "WARM_UP", 1)
    return folder


def test_it_prints_costs_and_a_forecast(runs, temporary, capsys):
    preflight(runs.config("run", trainer={"max_steps": 1000, "validation_pairs": 2}))
    out, err = capsys.readouterr()
    for part in ("cross-attention", "a step: ", "a validation: ", "1,000 steps until trainer.max_steps", "peak memory"):
        assert part in out
    assert "preflight of " in err
    assert "validation loss" not in err
    assert not (runs.folder / "run").exists()
    assert not list(temporary.iterdir())


def test_the_forecast_is_the_counts_times_their_seconds():
    trainer = TrainerConfig(max_steps=1000, validate_every=100)
    line = "1,000 steps until trainer.max_steps: about 110.0 minutes, validations included"
    assert forecast(trainer, 6.0, 60.0) == line


def test_a_time_limit_ends_the_forecast():
    trainer = TrainerConfig(max_steps=100_000, validate_every=100, max_time="00:00:10:00")
    assert forecast(trainer, 1.0, 20.0).startswith("500 steps until trainer.max_time: about 10.0 minutes")
    generous = TrainerConfig(max_steps=10, validate_every=100, max_time="00:01:00:00")
    assert "max_time" not in forecast(generous, 1.0, 20.0)

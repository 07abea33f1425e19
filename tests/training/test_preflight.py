"""Preflight: an answer, and nothing else."""

import tempfile

import pytest

from dragoman.config import TrainerConfig
from dragoman.training import preflight as module
from dragoman.training.preflight import forecast, preflight


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
    out = capsys.readouterr().out
    parts = ["preflight of ", "cross-attention", "a step: ", "a validation: ", "1,000 steps and 200 validations"]
    for part in [*parts, "peak memory"]:
        assert part in out
    assert not (runs.folder / "run").exists()
    assert not list(temporary.iterdir())


def test_the_forecast_is_the_counts_times_their_seconds():
    trainer = TrainerConfig(max_steps=1001, validate_every=100)
    assert forecast(trainer, 6.0, 60.0) == "1,001 steps and 11 validations: about 111.1 minutes"


def test_a_time_limit_ends_the_forecast():
    trainer = TrainerConfig(max_steps=100_000, validate_every=100, max_time="00:00:10:00")
    assert forecast(trainer, 1.0, 20.0).endswith("ends the run after about 500 steps")
    generous = TrainerConfig(max_steps=10, validate_every=100, max_time="00:01:00:00")
    assert "max_time" not in forecast(generous, 1.0, 20.0)

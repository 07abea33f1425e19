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
    tokens = []
    for accumulate, limit in (1, {"max_steps": 1000}), (2, {"max_steps": 10**9, "max_time": "00:00:10:00"}):
        preflight(runs.config("run", trainer=limit, training={"accumulate": accumulate}))
        out, err = capsys.readouterr()
        seconds, n_tokens = re.search(r"a step: ([\d.]+) seconds, (\d+) target tokens", out).groups()
        minutes = re.search(rf"steps until trainer\.{[*limit][-1]}: about ([\d.]+) minutes", out)[1]
        assert float(minutes) == pytest.approx(10 if "max_time" in limit else 1000 * float(seconds) / 60, abs=0.1)
        tokens.append(int(n_tokens))
    assert tokens[1] == pytest.approx(2 * tokens[0], abs=1)
    assert "cross-attention" in out
    assert "peak memory" in out
    assert "preflight of " in err
    assert "validation loss" not in err
    assert not (runs.folder / "run").exists()
    assert not list(temporary.iterdir())

"""Hyperparameter sweep: its trials, early stopping and resumption."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from dragoman.errors import UserError
from dragoman.training import fit as training
from dragoman.training import progress
from dragoman.training.checkpoint import Stopped

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))


@pytest.fixture
def sweep(monkeypatch, tmp_path, capsys):
    """Run the sweep with the given scores; return exit code, folders used and output."""
    pytest.importorskip("optuna")
    main = runpy.run_path(str(SCRIPTS / "sweep.py"))["main"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text("training.lr: {low: 1e-4, high: 1e-2, log: true}\nmodel.n_heads: [2, 4]\n")

    def sweep(trials, scores):
        used = []

        def fit(config):
            run = Path(config.run_dir)
            used.append(run.name)
            score = scores.get(run.name, 10.0)
            if isinstance(score, BaseException):
                raise score
            progress.LOGGERS["sweep"](run, 0).log_metrics({"validation/bleu": score}, 1)
            run.mkdir(parents=True, exist_ok=True)
            (run / "metrics.json").write_text(json.dumps({"best": {"bleu": score}}))
            return run / "bundle"

        monkeypatch.setattr(training, "fit", fit)
        monkeypatch.setitem(progress.LOGGERS, "sweep", None)
        code = main(["experiment=copy", "--space", "space.yaml", "--trials", str(trials)])
        return code, used, capsys.readouterr().out

    return sweep


def test_a_failed_trial_ends_no_sweep_and_a_bad_one_is_pruned(sweep):
    scores = {"trial-1": UserError("bad"), "trial-2": 30.0, "trial-7": 1.0}
    code, used, printed = sweep(8, scores)
    assert (code, len(used)) == (0, 8)
    states = [line.split()[1] for line in printed.splitlines() if line.strip()[0].isdigit()]
    assert states == ["COMPLETE", "FAIL", *["COMPLETE"] * 5, "PRUNED"]
    assert "the best: python train.py experiment=copy training.lr=" in printed


def test_a_stopped_sweep_resumes_its_trial(sweep):
    code, used, _ = sweep(3, {"trial-1": Stopped(15)})
    assert (code, used) == (143, ["trial-0", "trial-1"])
    code, used, _ = sweep(3, {})
    assert (code, used) == (0, ["trial-1", "trial-2"])
    assert sweep(3, {})[1] == []


def test_more_trials_draw_other_values(sweep):
    printed = sweep(2, {})[2] + sweep(4, {})[2]
    rates = re.findall(r"^runs/copy/trial-\d: training.lr=(\S+)", printed, re.MULTILINE)
    assert len(set(rates)) == len(rates) == 4


def test_trials_are_real_runs(monkeypatch, tmp_path, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(progress.LOGGERS, "sweep", None)
    (tmp_path / "space.yaml").write_text("training.lr: [1e-3, 3e-3]\ntrainer.max_time: [null]\n")
    words = "experiment=smoke training.monitor=loss trainer.max_steps=4 trainer.validate_every=2"
    main = runpy.run_path(str(SCRIPTS / "sweep.py"))["main"]
    assert main([*words.split(), "--space", "space.yaml", "--trials", "2"]) == 0
    printed = capsys.readouterr().out
    for run in (tmp_path / "runs" / "smoke").glob("trial-*"):
        assert (run / "bundle" / "model.safetensors").exists()
        assert f"{json.loads((run / 'metrics.json').read_text())['best']['loss']:.5g}" in printed
    assert printed.count("COMPLETE") == 2

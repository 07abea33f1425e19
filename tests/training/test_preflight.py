"""Asking what a run costs: an answer, and nothing else. How good the answer is, no test can say: see the README."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dragoman.config import Config
from dragoman.data.batching import Planner
from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import DataConfig
from dragoman.data.tokenizer import TokenizerConfig
from dragoman.errors import UserError
from dragoman.model.transformer import ModelConfig
from dragoman.torch_engine import translate_ids
from dragoman.training import preflight as room
from dragoman.training import quality
from dragoman.training.fit import TrainerConfig, fit
from dragoman.training.module import TrainingConfig
from dragoman.training.preflight import forecast, preflight
from dragoman.training.run import plain

PHRASES = Path(__file__).parents[2] / "data" / "phrasebook" / "handwritten" / "people.tsv"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """A run of seconds, and as few trial steps as can be."""
    lines = PHRASES.read_text(encoding="utf-8").splitlines()[:120]
    (tmp_path / "phrases.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(room, "STEPS", 3)
    monkeypatch.setattr(room, "WARM_UP", 1)

    def make(*, training: dict | None = None, **trainer) -> Config:
        return Config(
            run_dir=str(tmp_path / "run"),
            preflight=True,
            data=DataConfig(
                corpora=[CorpusConfig(path=str(tmp_path / "phrases.tsv"))],
                tokenizer=TokenizerConfig(kind="char", vocab_size=500),
                cache=str(tmp_path / "cache"),
                max_tokens=200,
                max_length=60,
                validation_size=10,
                test_size=0,
            ),
            model=ModelConfig(d_model=16, d_ff=32, n_heads=2, n_encoder_layers=1, n_decoder_layers=1),
            training=TrainingConfig(**(training or {})),
            trainer=TrainerConfig(
                **{
                    "accelerator": "cpu",
                    "precision": "32",
                    "max_steps": 2,
                    "validate_every": 2,
                    "samples": 0,
                    **trainer,
                }
            ),
        )

    return make


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_prints_the_costs_and_a_forecast_and_leaves_only_the_cache(config, tmp_path, capsys) -> None:
    preflight(config(max_steps=1000))
    out = capsys.readouterr().out
    for told in (
        "decoder cross-attention",
        "for each target token",
        "typical batches",
        "longest batch ",
        "a validation",
        "1,000 steps and 500 validations: ",
        "peak memory: ",
    ):
        assert told in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "phrases.tsv", "temporary"]
    assert not list((tmp_path / "temporary").iterdir())


def test_a_run_does_not_notice_that_it_was_asked_about(config, tmp_path) -> None:
    preflight(config())
    fit(config())  # begins as if nothing had been
    before = content(tmp_path / "run")
    preflight(config(max_steps=4))
    assert content(tmp_path / "run") == before
    fit(config(max_steps=4))  # goes on
    assert b'"step": 4' in content(tmp_path / "run")["metrics.json"]


def test_asking_is_no_part_of_a_runs_configuration() -> None:
    assert plain(Config(preflight=True)) == plain(Config())


def test_what_a_run_would_refuse_is_refused_and_leaves_nothing(config, tmp_path) -> None:
    asked = config()
    asked.data.corpora = [CorpusConfig(path=str(tmp_path / "nowhere.tsv"))]
    with pytest.raises(UserError, match=r"nowhere\.tsv"):
        preflight(asked)
    assert not (tmp_path / "run").exists()
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_are_those_of_the_run_with_all_their_batches(config, monkeypatch, accumulate: int) -> None:
    seen = []
    monkeypatch.setattr(room, "_report", lambda config, watch, *_: seen.append(watch) or [])
    preflight(config(training={"accumulate": accumulate, "ema": 0.9}))
    (watch,) = seen
    assert len(watch.steps) == 2 * (1 + 3)
    assert all(seconds > 0 for seconds, _ in watch.steps)
    longest = [tokens for _, tokens in watch.steps[4:]]
    assert len(set(longest)) == 1
    assert longest[0] % accumulate == 0
    assert watch.validation > 0


def test_translations_of_a_model_that_knows_nothing_are_as_long_as_their_limits(config, monkeypatch) -> None:
    seen = []

    def translate(model, sources, search):
        found = translate_ids(model, sources, search)
        lengths = [len(hypotheses[0].ids) for hypotheses in found]
        seen.append((lengths, [search.max_length(len(source)) for source in sources]))
        return found

    monkeypatch.setattr(quality, "translate_ids", translate)
    preflight(config(samples=2))
    assert len(seen) == 2
    for lengths, limits in seen:
        assert lengths == limits


def test_the_trial_takes_typical_batches_of_the_real_plan_and_then_the_longest() -> None:
    chance = np.random.default_rng(0)
    real = Planner(*chance.integers(3, 40, (2, 300)), max_tokens=200, seed=1)
    trial = room._TrialPlan(real, 5).epoch(0)
    longest, *others = real.epoch(0)
    assert [rows.tolist() for rows in trial] == [rows.tolist() for rows in [*others[:5], *5 * [longest]]]
    alone = Planner(np.array([9]), np.array([7]), max_tokens=200, seed=1)
    assert [rows.tolist() for rows in room._TrialPlan(alone, 2).epoch(0)] == 4 * [[0]]


def test_the_forecast_is_steps_and_validations_times_their_seconds() -> None:
    trainer = TrainerConfig(max_steps=1001, validate_every=100)
    assert forecast(trainer, 7.2, 36.0) == "1,001 steps and 11 validations: 2.1 hours"
    assert forecast(trainer, 0.05, 0.0).endswith(": 50 seconds")


def test_a_time_limit_ends_the_forecast_where_it_would_end_the_run() -> None:
    def steps(limit: str) -> int:
        told = forecast(TrainerConfig(max_steps=100_000, validate_every=100, max_time=limit), 1.0, 20.0)
        return int(re.findall(r"after about ([\d,]+) steps", told)[0].replace(",", ""))

    assert steps("00:00:01:00") == 60
    assert steps("00:00:02:00") == 100  # and 20 seconds of validation
    assert steps("00:00:04:10") == 210
    generous = TrainerConfig(max_steps=10, validate_every=100, max_time="00:01:00:00")
    assert "max_time" not in forecast(generous, 1.0, 20.0)

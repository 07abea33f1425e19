"""Terminal output and logged scalars of a training."""

import itertools
from types import SimpleNamespace

import torch

from dragoman.config import TrainerConfig
from dragoman.training import progress
from dragoman.training.progress import ProgressCallback


def run_steps(callback, monkeypatch, *, terminal):
    """Call `callback` for two steps, each with a validation."""
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "BAR_SECONDS", 0.0)
    monkeypatch.setattr(progress.CONSOLE, "_force_terminal", terminal)
    module = SimpleNamespace(measured={"loss": 2.5}, device=torch.device("cpu"))
    trainer = SimpleNamespace(is_global_zero=True, global_step=0, world_size=1, accumulate_grad_batches=1, loggers=[])
    trainer.state = SimpleNamespace(fn="fit")
    batch = SimpleNamespace(n_tokens=100)
    callback.on_train_start(trainer, module)
    for i in range(2):
        trainer.global_step = i + 1
        callback.on_train_batch_end(trainer, module, None, batch, i)
        callback.on_validation_end(trainer, module)
    callback.on_train_end(trainer, module)


def test_plain_lines_without_a_terminal(monkeypatch, capsys):
    config = TrainerConfig(max_steps=4, max_time="00:01:00:00", log_every=1)
    run_steps(ProgressCallback(config), monkeypatch, terminal=False)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("50%  step 2 of 4  loss 2.500  ")
    assert "  100 tokens/s  " in lines[1]
    assert lines[1].endswith(" left")


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress.CONSOLE, "is_interactive", True)
    config = TrainerConfig(max_steps=4, log_every=1)
    run_steps(ProgressCallback(config), monkeypatch, terminal=True)
    shown = capsys.readouterr().err
    assert "50%" in shown
    assert "step 2 of 4  loss 2.500  " in shown


def test_a_long_line_is_not_wrapped(capsys):
    progress.report("word [b] " * 60)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_seconds_go_on_after_a_resume():
    first, second = ProgressCallback(TrainerConfig(max_time="00:00:01:00")), ProgressCallback(TrainerConfig())
    first.load_state_dict({"seconds": 59.0, "pace": 0.0})
    assert not first.is_late
    first.load_state_dict({"seconds": 60.0, "pace": 0.0})
    assert first.is_late
    second.load_state_dict(first.state_dict())
    assert second.seconds >= 60.0
    assert not second.is_late


def test_max_time_ends_a_planned_run_that_goes_on_with_max_steps():
    given, planned = (ProgressCallback(TrainerConfig(max_time="00:00:01:00", max_steps=n)) for n in (500, None))
    for progress_ in (given, planned):
        progress_.load_state_dict({"seconds": 60.0, "pace": 1.0})
    assert given.is_late
    assert not planned.is_late

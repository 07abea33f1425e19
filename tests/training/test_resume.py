"""Resumption of interrupted runs, compared bit by bit with an uninterrupted one."""

import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision

from dragoman import files
from dragoman.errors import UserError
from dragoman.training import checkpoint
from dragoman.training.checkpoint import CheckpointIO, Stopped, StopSignals, newest
from dragoman.training.run import lock


def step_of(path):
    return torch.load(path, weights_only=True)["global_step"]


def kill(signum: int):
    return lambda: os.kill(os.getpid(), signum)


@pytest.fixture(autouse=True)
def signals_are_not_ignored() -> Iterator[None]:
    """Reset SIGINT and SIGHUP, which background shells and nohup ignore."""
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {signum: signal.signal(signum, handler) for signum, handler in defaults.items()}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_a_signal_that_nohup_ignores_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


class CrashError(Exception):
    """Stand-in for a kill: only files written before it remain."""


def crash():
    raise CrashError


@pytest.mark.parametrize(
    ("step", "scalar", "signum"),
    [
        (3, "train/loss", signal.SIGTERM),
        pytest.param(5, "train/loss", signal.SIGINT, marks=pytest.mark.slow),
        (5, "validation/loss", signal.SIGHUP),
        pytest.param(12, "validation/loss", signal.SIGUSR1, marks=pytest.mark.slow),
    ],
    ids=["between validations", "a validation is due", "in a validation", "in the last validation"],
)
def test_a_stop_saves_and_the_run_resumes(step, scalar, signum, runs, straight, at_step, outcome, checkpoint_of):
    before = signal.getsignal(signum)
    with pytest.raises(Stopped) as stopped:
        runs.fit("run", trainer=at_step(step, kill(signum), scalar=scalar))
    assert signal.getsignal(signum) == before
    assert stopped.value.signum == signum
    assert stopped.value.path == runs.folder / "run" / "last.ckpt"
    assert checkpoint_of(runs.folder / "run")["global_step"] == step
    assert outcome(runs.fit("run")) == outcome(straight)


@pytest.mark.parametrize("step", [5, pytest.param(12, marks=pytest.mark.slow)])
def test_a_run_killed_in_a_step_resumes(step, runs, straight, at_step, outcome):
    """A validation is due after step 5, and the last validation after step 12."""
    with pytest.raises(CrashError):
        runs.fit("run", trainer={"save_minutes": 0.0} | at_step(step, crash))
    assert step_of(newest(runs.folder / "run")) == step - 1
    assert outcome(runs.fit("run")) == outcome(straight)


def test_the_run_is_saved_when_the_minutes_are_over(runs, at_step, monkeypatch):
    """31 seconds pass between two looks at the clock, so every second step is saved."""
    seconds = itertools.count(0, 31).__next__
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=seconds))
    with pytest.raises(CrashError):
        runs.fit("run", trainer={"save_minutes": 1.0} | at_step(4, crash))
    assert step_of(newest(runs.folder / "run")) == 2


@pytest.mark.slow
def test_a_run_killed_before_its_first_save_starts_again(runs, straight, at_step, outcome, capsys):
    with pytest.raises(CrashError):
        runs.fit("run", trainer=at_step(2, crash))
    assert newest(runs.folder / "run") is None
    assert outcome(runs.fit("run")) == outcome(straight)
    assert "resuming" not in capsys.readouterr().err


def test_the_scale_of_fp16_goes_on_after_a_resume(runs, at_step, checkpoint_of, monkeypatch):
    """The scale doubles every two steps. Lightning has fp16 on a CPU only by a plugin."""

    def with_scaler(plugins, **options):
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=2)
        plugins = [*plugins, MixedPrecision("16-mixed", "cpu", scaler)]
        return Trainer(plugins=plugins, **options | {"precision": None})

    def scale_of(run):
        state = checkpoint_of(run)["MixedPrecision"]
        return state["scale"], state["_growth_tracker"]

    monkeypatch.setattr("dragoman.training.fit.Trainer", with_scaler)
    with pytest.raises(Stopped):
        runs.fit("run", trainer=at_step(3, kill(signal.SIGTERM)) | {"max_steps": 4})
    assert scale_of(runs.folder / "run") == (2.0, 1)
    assert scale_of(runs.fit("run", trainer={"max_steps": 4})) == (4.0, 0)


@pytest.mark.slow
def test_worker_processes_change_nothing(runs, straight, outcome):
    assert outcome(runs.fit("run", workers=1)) == outcome(straight)


@pytest.mark.parametrize(("signum", "step"), [(signal.SIGINT, 5), (signal.SIGTERM, 7)])
def test_only_a_second_ctrl_c_stops_at_once(signum, step, runs, at_step, checkpoint_of):
    """Schedulers send SIGTERM more than once: the run is saved all the same."""

    def twice():
        kill(signum)()
        kill(signum)()

    with pytest.raises(Stopped) as stopped:
        runs.fit("run", trainer=at_step(7, twice))
    assert (stopped.value.path is None) == (signum == signal.SIGINT)
    assert checkpoint_of(runs.folder / "run")["global_step"] == step


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_workers_too_saves(signum, runs, at_step, checkpoint_of):
    def kill_all():
        for process in (*multiprocessing.active_children(), multiprocessing.current_process()):
            os.kill(process.pid, signum)
        time.sleep(0.5)  # for the end of a worker to be noticed

    with pytest.raises(Stopped):
        runs.fit("run", workers=1, trainer=at_step(3, kill_all))
    assert checkpoint_of(runs.folder / "run")["global_step"] == 3


def test_a_stop_in_a_validation_ends_the_workers(runs, at_step):
    """A worker that lives on would keep the program from ending."""
    with pytest.raises(Stopped):
        runs.fit("run", workers=1, trainer=at_step(5, kill(signal.SIGTERM), scalar="validation/loss"))
    assert not multiprocessing.active_children()


def save(folder: Path, step: int) -> Path:
    content = {"state_dict": {"w": torch.full((5000,), float(step))}, "global_step": step}
    CheckpointIO().save_checkpoint(content, folder / "last.ckpt")
    return folder / "last.ckpt"


@pytest.mark.parametrize("n_renames", [0, 1, 2])
def test_a_save_killed_at_any_rename_leaves_a_checkpoint(n_renames, tmp_path, monkeypatch):
    """Order of the renames: checksums, previous checkpoint, new checkpoint."""
    save(tmp_path, 1)
    save(tmp_path, 2)
    left, rename = [n_renames], os.replace

    def replace(old, new):
        if not left[0]:
            raise CrashError
        left[0] -= 1
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", replace)
        with pytest.raises(CrashError):
            save(tmp_path, 3)
    assert step_of(newest(tmp_path)) == 2
    save(tmp_path, 4)
    (tmp_path / "last.ckpt").unlink()
    assert step_of(newest(tmp_path)) == 2


HARM = {
    "truncated": lambda whole: whole[: len(whole) // 2],
    "one bit flipped": lambda whole: whole[:9000] + bytes([whole[9000] ^ 4]) + whole[9001:],
}


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_checkpoint_gives_way_to_the_previous(harm, tmp_path, capsys):
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    path.write_bytes(HARM[harm](path.read_bytes()))
    assert newest(tmp_path) == path
    assert step_of(path) == 1
    assert "last.ckpt is damaged" in capsys.readouterr().out
    save(tmp_path, 3)
    path.unlink()
    assert step_of(newest(tmp_path)) == 1


def test_two_damaged_checkpoints_are_an_error(tmp_path):
    save(tmp_path, 1)
    for path in (save(tmp_path, 2), files.previous_of(tmp_path / "last.ckpt")):
        path.write_bytes(b"")
    with pytest.raises(UserError, match=r"last\.ckpt: damaged, and no previous checkpoint"):
        newest(tmp_path)


def test_one_run_per_folder(runs, monkeypatch):
    monkeypatch.setattr("dragoman.training.run.LOCK_SECONDS", 0.1)
    with lock(runs.folder / "run"), pytest.raises(UserError, match="another process trains there"):
        runs.fit("run")
    with lock(runs.folder / "run"):
        pass

"""A run that is told to stop, or to save, at any moment: it does, and goes on as if nothing had been."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL

from doors import attentive
from dragoman import bundle, durable
from dragoman.config import Config
from dragoman.data.datamodule import TranslationData
from dragoman.errors import UserError
from dragoman.training import fit as room
from dragoman.training import run as folder
from dragoman.training.checkpoint import LAST, newest
from dragoman.training.fit import fit
from dragoman.training.quality import Quality
from dragoman.training.run import lock
from dragoman.training.signals import Stopped
from runs import assert_same_state, checkpoint, losses

MOMENTS = {  # the nth call of what, and the step that is then saved
    "preparing the data": (TranslationData, "prepare", 1, None),
    "starting up": (Quality, "on_fit_start", 1, None),
    "in a validation": (Quality, "_translate", 2, 10),
    "at the end of a validation": (Quality, "_show", 2, 10),
    "saving a checkpoint": (durable, "previous_of", 2, 10),
    "saving a bundle": (bundle, "save", 1, 5),
    "in the last validation": (Quality, "_translate", 3, 12),
    "in the validation of the mean": (Quality, "_translate", 4, 12),
    "at the very end": (Quality, "curve", 1, 12),
    "making the export": (room, "export_bundle", 1, 12),
}


DOOR = Path(__file__).parents[2] / "train.py"
LOADING = """
class Slow:
    def find_spec(self, name, *_):
        if name == "hydra":
            print("loading", flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Slow())
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stop_at_any_moment_loses_nothing(
    config: Callable[..., Config], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {"average_last": 2}
    straight, broken = config("straight", training=training), config("broken", training=training)
    fit(straight)
    owner, name, nth, step = MOMENTS[moment]
    original, left = getattr(owner, name), [nth]
    signum = signal.SIGINT if nth % 2 else signal.SIGTERM

    def nudged(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signum)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, nudged)
    before = signal.getsignal(signum)
    with pytest.raises(Stopped) as stopped:
        fit(broken)
    assert stopped.value.signum == signum
    assert signal.getsignal(signum) == before
    run = Path(broken.run_dir)
    found = newest(run, None)
    assert (found.step if found else None) == step
    fit(broken)
    assert_same_state(straight, broken)
    assert losses(straight) == losses(broken)
    weights = [Path(c.run_dir, "bundle", "model.safetensors").read_bytes() for c in (straight, broken)]
    assert weights[0] == weights[1]
    exports = [Path(c.run_dir, "bundle", "ctranslate2").is_dir() for c in (straight, broken)]
    assert exports[0] == exports[1]


def test_a_run_broken_off_before_its_export_is_not_finished(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def export(folder: Path, *_: object) -> None:
        made.append(folder)
        if len(made) == 1:
            raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(room, "export_bundle", export)
    with pytest.raises(Stopped):
        fit(config())
    fit(config())
    fit(config())  # is finished by now
    assert len(made) == 2


def test_what_a_killed_run_had_begun_to_write_is_swept(config: Callable[..., Config]) -> None:
    run = Path(fit(config())).parent
    for left in (run / "last.ckpt.part", run / "snapshots" / "step-000000005.safetensors.part"):
        left.parent.mkdir(exist_ok=True)
        left.write_bytes(b"half")
    (run / ".bundle.new").mkdir()
    (run / ".bundle.new" / "model.safetensors").write_bytes(b"half")
    fit(config())
    assert not [path for path in run.rglob("*") if path.suffix in (".part", ".new")]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_while_the_door_is_loading_is_one_line(tmp_path: Path, signum: int) -> None:
    """And SIGUSR1 does nothing there: it saves, and nothing has been trained."""
    command = [sys.executable, "-c", f"import runpy, sys, time\nsys.argv = [{str(DOOR)!r}]\n{LOADING}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, preexec_fn=attentive, **pipes)  # type: ignore[call-overload]
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.1)
    assert process.poll() is None
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signum
    assert err.splitlines() == ["stopped, and nothing is lost; the same command begins again"]


def at_step(step: int, monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Have something done when that step ends, before the keeper looks."""

    class Nudge(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == step:
                do()

    made = room.trainer_for
    monkeypatch.setattr(room, "trainer_for", lambda c, r, callbacks, s: made(c, r, [Nudge(), *callbacks], s))


def test_asked_to_save_it_saves_and_goes_on(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    at_step(3, monkeypatch, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    for later in (4, 5):
        at_step(later, monkeypatch, lambda: steps.append(checkpoint(config())["global_step"]))
    fit(config())
    assert steps == [3, 3]  # asked once, it saves once
    assert checkpoint(config())["global_step"] == 12


def test_asked_twice_it_stops_at_once_and_what_was_saved_is_whole(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    at_step(7, monkeypatch, twice)
    with pytest.raises(Stopped) as stopped:
        fit(config())
    assert stopped.value.path is None
    assert newest(Path(config().run_dir), None) == (
        Path(config().run_dir) / LAST,
        checkpoint(config())["run"],
        5,
    )


HOLD = """
import pathlib, sys, time
from dragoman.training.run import lock
held = lock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_told_who_trains_there_and_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        told = rf"another process is training in .*run \(process {holder.pid} on {socket.gethostname()}\)"
        with pytest.raises(UserError, match=told):
            lock(run)
    finally:
        holder.kill()
        holder.wait()
    with lock(run):
        pass


def test_workers_that_a_killed_holder_left_behind_hold_its_folder_only_until_they_notice(
    tmp_path: Path,
) -> None:
    heard, said = os.pipe()
    holder = os.fork()
    if not holder:
        try:
            with lock(tmp_path / "run"):
                myself = os.getpid()
            # By hand: not every version of filelock lets a child inherit.
            fcntl.flock(os.open(tmp_path / ".run.lock", os.O_RDWR), fcntl.LOCK_EX)
            if os.fork():
                os.write(said, b"held")
                time.sleep(60)
            while os.getppid() == myself:
                time.sleep(0.05)
            time.sleep(0.3)
        finally:
            os._exit(0)
    os.close(said)
    with open(heard, "rb") as pipe:
        assert pipe.read(4) == b"held"
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    with lock(tmp_path / "run"):
        pass
    assert folder._ORPHAN_SECONDS > 2 * MP_STATUS_CHECK_INTERVAL  # how often a DataLoader's workers look


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_door_leaves_with_the_code_of_the_signal(tmp_path: Path, signum: int, code: int) -> None:
    train = Path(__file__).parents[2] / "train.py"
    phrases = train.parent / "data" / "phrasebook" / "handwritten" / "people.tsv"
    command = [sys.executable, str(train), "experiment=smoke", "trainer.max_steps=10000"]
    command += [f"data.corpora=[{{path: {phrases}}}]"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        while not process.stdout.readline().startswith("training runs/smoke"):
            assert process.poll() is None
        process.send_signal(signum)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code
    assert err.splitlines()[-1].startswith("stopped")
    assert "Traceback" not in err

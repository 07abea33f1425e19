"""What every command line does with the files it is to write, its streams, and signals."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from doors import Door, attentive
from dragoman import durable
from dragoman.doors import new_file
from dragoman.errors import UserError


@pytest.fixture
def door(
    tiny_bundle_folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Door:
    """translate.py in a folder with a model under runs/."""
    return Door("translate.py", tiny_bundle_folder.parents[2], monkeypatch, capfdbinary)


def test_a_pipe_and_a_device_are_written_into_and_never_replaced(door: Door, tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "null"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    door("好久不见", "我爱你", "--output", str(pipe), "--overwrite")
    assert reader.communicate(timeout=60)[0].count(b"\n") == 2
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    door("好久不见", "我爱你", "--embed", str(pipe))
    assert np.load(io.BytesIO(reader.communicate(timeout=60)[0])).shape == (2, 32)
    assert pipe.is_fifo()
    link.symlink_to(os.devnull)
    door("好久不见", "--output", str(link), "--overwrite")
    assert link.is_symlink()
    assert link.is_char_device()
    assert sorted(tmp_path.iterdir()) == [link, pipe]


def test_a_link_stays_one_and_what_it_leads_to_is_written(door: Door, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file, link = tmp_path / "folder" / "file", tmp_path / "link"
    link.symlink_to(file)
    door("好久不见", "--output", str(link))
    assert "exists already" in door.refused("好久不见", "我爱你", "--output", str(link))
    door("好久不见", "我爱你", "--output", str(link), "--overwrite")
    assert link.is_symlink()
    assert file.read_text().count("\n") == 2
    assert list((tmp_path / "folder").iterdir()) == [file]


def test_no_file_of_the_user_is_taken_for_a_leftover(door: Door, tmp_path: Path) -> None:
    (tmp_path / "out.part").write_text("mine")
    door("好久不见", "--output", str(tmp_path / "out"))
    assert (tmp_path / "out.part").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.part"]


def test_a_run_is_told_how_it_goes_on_and_an_output_is_not(door: Door, tmp_path: Path) -> None:
    assert "goes on" not in door.refused("好", "--output", str(tmp_path / "no" / "folder"))
    with pytest.raises(UserError, match="the same command goes on"):
        durable.write(tmp_path / "no" / "metrics.json", b"{}")


def test_a_closed_standard_stream_is_like_dev_null(door: Door, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for closed in (0, 1, 2):
        done = door.process("好", "--output", out, "--overwrite", preexec_fn=lambda n=closed: os.close(n))
        assert done.returncode == 0
        assert Path(out).read_bytes().count(b"\n") == 1
    done = door.process(capture_output=True, preexec_fn=lambda: os.close(0))
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_half_written_file(door: Door, tmp_path: Path, signum: int) -> None:
    command = [sys.executable, str(door.script), "--output", str(tmp_path / "out")]
    streams = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": attentive}
    with subprocess.Popen(command, cwd=door.home, **streams) as process:  # type: ignore[call-overload]
        deadline = time.monotonic() + 60
        while not any(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signum)
        assert process.wait(timeout=60) == 128 + signum
        assert b"Traceback" not in process.stderr.read()
    assert list(tmp_path.iterdir()) == []


def test_a_signal_that_was_to_be_ignored_is(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with new_file(tmp_path / "out", overwrite=False):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert (tmp_path / "out").exists()

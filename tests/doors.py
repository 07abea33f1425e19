"""Running the doors in tests: in this process, where torch is loaded already, or in one of their own."""

import io
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # by doors


def as_nobody(work: Callable[[], str]) -> str:
    """What `work` says, done by a child without root's right to read everything."""
    there, here = os.pipe()
    child = os.fork()
    if not child:
        try:
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            said = work()
        except BaseException:
            said = traceback.format_exc()
        os.write(here, said.encode())
        os._exit(0)
    os.close(here)
    with open(there, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def attentive() -> None:
    """Before a program begins: hear the signals that nohup, or a shell's background, would have it ignore."""
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


class Done(NamedTuple):
    """What a door left behind."""

    out: bytes
    err: str


class Door:
    """A door script as the shell would run it in the folder `home`."""

    def __init__(
        self,
        script: str,
        home: Path,
        monkeypatch: pytest.MonkeyPatch,
        capture: pytest.CaptureFixture[bytes],
    ) -> None:
        self.script, self.home, self.monkeypatch, self.capture = ROOT / script, home, monkeypatch, capture

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> Done:
        """Run it; it must leave with `code`."""
        self.monkeypatch.chdir(self.home)
        self.monkeypatch.setattr(sys, "argv", [str(self.script), *arguments])
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        left = 0
        handlers = {signum: signal.getsignal(signum) for signum in HEARD}
        try:
            runpy.run_path(str(self.script), run_name="__main__")
        except SystemExit as end:
            left = int(end.code or 0)
        finally:  # this process goes on, and hears what it heard before
            for signum, handler in handlers.items():
                signal.signal(signum, handler)
        out, err = self.capture.readouterr()
        assert left == code, err.decode()
        return Done(out, err.decode())

    def refused(self, *arguments: str) -> str:
        """The one line on stderr with which the arguments are refused."""
        done = self(*arguments, code=2)
        assert done.out == b""
        complaints = [line for line in done.err.splitlines() if line.startswith("error: ")]
        assert len(complaints) == 1
        assert "Traceback" not in done.err
        assert done.err.splitlines()[-1] == complaints[0]
        return complaints[0]

    def process(self, *arguments: str | bytes, **streams: Any) -> subprocess.CompletedProcess[bytes]:
        """Run it in a process of its own, for what only processes can show."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "ascii"}
        command = [sys.executable, str(self.script), *arguments]
        return subprocess.run(command, cwd=self.home, timeout=120, env=environment, check=False, **streams)

"""A folder with the golden model under runs/, and programs called in this process."""

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle"


class Result(NamedTuple):
    """The output of a program."""

    out: str
    err: str

    @property
    def error(self) -> str:
        """The error message, the last line of stderr."""
        *notes, line = self.err.splitlines()
        assert line.startswith("error: ")
        assert not [note for note in notes if note.startswith(("error: ", "Traceback"))]
        return line


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary current folder with one model, runs/golden."""
    shutil.copytree(GOLDEN, tmp_path / "runs" / "golden" / "bundle")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable:
    """Run a program: run(main, *arguments, stdin=b"", code=expected exit code)."""

    def run(main: Callable[[list[str]], int], *arguments: str, stdin: bytes = b"", code: int = 0) -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        monkeypatch.setattr(sys, "argv", ["program.py"])
        exit_code = main(list(arguments))
        out, err = (stream.decode() for stream in capfdbinary.readouterr())
        assert exit_code == code, err
        return Result(out, err)

    return run

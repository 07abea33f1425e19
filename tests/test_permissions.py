"""What may not be read is named in one line, and is in the way of nothing else."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from doors import as_nobody
from dragoman import description
from dragoman.description import load_shell, locate, newest
from dragoman.doors import open_door
from dragoman.errors import UserError


@pytest.fixture
def home(tiny_bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Here: runs/open and runs/shut, of which only the first may be looked into."""
    for name in ("open", "shut"):
        shutil.copytree(tiny_bundle_folder, tmp_path / "runs" / name / "bundle")
    (tmp_path / "runs" / "shut").chmod(0)
    tmp_path.chmod(0o777)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for path in (tmp_path / "runs").rglob("*"):
        path.chmod(0o755)


def test_the_newest_model_is_found_beside_a_run_that_may_not_be_read(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(description.log, "warning", lambda text, *values: notes.append(text % values))

    def find() -> str:
        return f"{newest(Path('runs'), lambda known: True)} {notes}"

    assert as_nobody(find) == (
        "runs/open/bundle ['note: runs/shut/bundle cannot be read (Permission denied): it is passed over']"
    )
    shutil.rmtree(home / "runs" / "open")
    assert "no model fits this input: runs/shut/bundle cannot be read" in as_nobody(find)


def test_a_model_that_may_not_be_read_is_refused_in_one_line(home: Path) -> None:
    def load() -> str:
        try:
            return str(load_shell(locate(Path("runs/shut"))))
        except UserError as error:
            return str(error)

    assert as_nobody(load) == "cannot read runs/shut/config.json: Permission denied"


def test_a_door_names_what_may_not_be_opened_in_one_line(home: Path) -> None:
    def enter() -> str:
        sys.stderr = open("said", "w+")  # noqa: SIM115
        with pytest.raises(SystemExit):
            open_door(lambda: os.listdir("runs/shut") and None)
        sys.stderr.seek(0)
        return sys.stderr.read()

    assert as_nobody(enter) == "error: cannot open runs/shut: Permission denied\n"

"""The Makefile with a stub for Python: installation, and errors for mistakes."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="no make here")


class Checkout:
    """Files that `make` reads, and a .venv/bin/python that logs its arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.python = folder, folder / "log", folder / ".venv" / "bin" / "python"
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder / name)
        self.python.parent.mkdir(parents=True)
        program(self.python, f'printf "%s\\n" "$*" >> "{self.log}"')

    def make(self, *words: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        names = set(os.environ) - {"MAKEFLAGS", "MAKELEVEL", "VENV"}
        environment = {name: os.environ[name] for name in names}
        command = ["make", "PYTHON=true", *words]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done

    def calls(self, pattern: str) -> list[str]:
        """Return the logged lines with `pattern`, and empty the log."""
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line for line in lines if pattern in line]


def program(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines]), encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_help_names_every_target(checkout: Checkout) -> None:
    lines = checkout.make().stdout.splitlines()
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert phony
    assert sorted(line.split()[1] for line in lines) == sorted(phony[1].split())
    assert all(len(line.split()) > 3 for line in lines)


def test_another_python_is_an_error_in_one_line(checkout: Checkout) -> None:
    shutil.rmtree(checkout.folder / ".venv")
    lines = '[ "$1" = --version ] && echo "Python 3.14.0" && exit 0', "exit 1"
    result = checkout.make("setup", f"PYTHON={program(checkout.folder / 'other-python', *lines)}", code=2)
    (error,) = [line for line in result.stderr.splitlines() if not line.startswith("make")]
    assert "Python 3.14.0" in error
    assert "PYTHON=python3.12" in error
    assert not (checkout.folder / ".venv").exists()


def test_developers_get_more_than_users(checkout: Checkout) -> None:
    checkout.make("setup")
    installs = checkout.calls("pip install")
    assert [line for line in installs if "-e .[export,serve]" in line]
    assert all("-c constraints.txt" in line and "-e .[dev]" not in line for line in installs)
    checkout.make("setup-dev")
    assert checkout.calls("-e .[dev]")


def test_pip_is_called_again_only_for_new_requirements(checkout: Checkout) -> None:
    for target, installs in (("setup", True), ("setup", False), ("test", True), ("test", False)):
        checkout.make(target)
        assert bool(checkout.calls("pip install")) == installs
    # as a checkout of another branch and back does
    (checkout.folder / "pyproject.toml").touch()
    checkout.make("train")
    assert not checkout.calls("pip install")
    with (checkout.folder / "constraints.txt").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    checkout.make("test")
    assert checkout.calls("pip install")


def test_an_index_serves_only_missing_torch(checkout: Checkout) -> None:
    checkout.make("setup", "TORCH_INDEX=http://127.0.0.1:9/cpu")
    assert not checkout.calls("--index-url")
    (checkout.folder / "pyproject.toml").write_text("changed")
    find = 'case "$*" in *find_spec*) exit 1;; esac'
    program(checkout.python, f'printf "%s\\n" "$*" >> "{checkout.log}"', find)
    checkout.make("setup", "TORCH_INDEX=http://127.0.0.1:9/cpu")
    assert [line.endswith("torch") for line in checkout.calls("--index-url")] == [True]


def test_text_reaches_the_translator_unchanged(checkout: Checkout) -> None:
    text = """他说"$5 is 'ok'" `ls` $(pwd) \\n -- 好"""
    checkout.make("translate", f"TEXT={text}")
    assert checkout.calls("translate.py") == [f"translate.py -- {text}"]


def test_clean_keeps_runs_and_data(checkout: Checkout) -> None:
    folders = [checkout.folder / name for name in ("runs/mine", "data/mine", "src/__pycache__", ".venv/lib")]
    for folder in (*folders, checkout.folder / "tests", checkout.folder / "scripts"):
        folder.mkdir(parents=True)
    checkout.make("clean")
    assert [folder.exists() for folder in folders] == [True, True, False, False]


def test_continuous_integration_runs_every_check() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    for target in ("setup-dev", "check", "smoke", "test"):
        assert f"make {target}\n" in script.read_text(encoding="utf-8")

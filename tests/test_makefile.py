"""Set-up is pinned, explains itself, and asks the network for nothing once it is done."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DIRECT = [
    Requirement(text) for text in (*PROJECT["dependencies"], *(r for rs in EXTRAS.values() for r in rs))
]


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [re.fullmatch(r"([\w.-]+)==([\w.!]+)", line) for line in lines if not line.startswith("#")]
    assert all(pairs), "each line is name==version: no ranges, paths, hosts or local suffixes"
    return {canonicalize_name(pair[1]): Version(pair[2]) for pair in pairs if pair}


@pytest.mark.parametrize("requirement", DIRECT, ids=str)
def test_each_direct_dependency_is_pinned_within_its_range(requirement: Requirement) -> None:
    assert pins()[canonicalize_name(requirement.name)] in requirement.specifier


def test_the_malicious_releases_of_lightning_are_out_of_reach() -> None:
    allowed = next(requirement for requirement in DIRECT if requirement.name == "lightning").specifier
    assert not {"2.6.2", "2.6.3"} & {str(version) for version in allowed.filter(["2.6.2", "2.6.3", "2.6.6"])}


def test_nothing_of_one_kind_of_machine_is_pinned() -> None:
    assert not [name for name in pins() if name.startswith(("nvidia", "cuda", "triton", "pywin"))]


def make(folder: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    quiet = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "VENV"}
    }
    return subprocess.run(
        ["make", *words], cwd=folder, env=quiet | environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Only what `make` itself reads, so that nothing can be installed into the real environment."""
    if not shutil.which("make"):
        pytest.skip("no make here")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def stub(path: Path, log: Path, *, found: bool = True) -> None:
    """A python that writes down what it is asked, and finds (or does not find) what it is asked for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    asks = 'case "$*" in *find_spec*) exit 1;; esac\n' if not found else ""
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> "{log}"\n{asks}exit 0\n', encoding="utf-8")
    path.chmod(0o755)


def asked(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def test_make_alone_names_every_target_with_one_line_each(checkout: Path) -> None:
    lines = make(checkout).stdout.splitlines()
    named = [line.split()[1] for line in lines]
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert phony
    assert sorted(named) == sorted(phony[1].split())
    assert all(len(line.split()) > 3 for line in lines)


@pytest.mark.parametrize("version", ["Python 3.10.13", "Python 3.14.0"])
def test_another_python_is_refused_in_one_line_that_says_what_to_do(checkout: Path, version: str) -> None:
    python = checkout / "old-python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit 0\nexit 1\n', encoding="utf-8"
    )
    python.chmod(0o755)
    result = make(checkout, "setup", f"PYTHON={python}")
    errors = [line for line in result.stderr.splitlines() if not line.startswith("make")]
    assert result.returncode == 2
    assert len(errors) == 1
    assert version in errors[0]
    assert "PYTHON=python3.12" in errors[0]
    assert not (checkout / ".venv").exists()


def test_pip_is_called_once_and_again_only_when_the_requirements_change(checkout: Path) -> None:
    log = checkout / "log"
    stub(checkout / ".venv" / "bin" / "python", log)

    def pip_calls_of(target: str) -> int:
        log.unlink(missing_ok=True)
        assert make(checkout, target, "PYTHON=true").returncode == 0
        return sum("pip install" in line for line in asked(log))

    assert pip_calls_of("setup") > 0
    assert pip_calls_of("setup") == 0
    assert pip_calls_of("test") == 0
    (checkout / "pyproject.toml").touch()  # as a checkout of another branch and back does
    assert pip_calls_of("train") == 0
    with (checkout / "constraints.txt").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert pip_calls_of("setup") > 0
    assert pip_calls_of("setup") == 0


@pytest.mark.parametrize("found", [True, False])
def test_torch_that_is_there_is_kept_and_otherwise_comes_first_from_the_named_index(
    checkout: Path, found: bool
) -> None:
    log = checkout / "log"
    stub(checkout / ".venv" / "bin" / "python", log, found=found)
    assert make(checkout, "setup", "PYTHON=true", "TORCH_INDEX=http://127.0.0.1:9/cpu").returncode == 0
    installs = [line for line in asked(log) if "pip install" in line]
    assert ("--index-url http://127.0.0.1:9/cpu" in installs[0]) == (not found)
    assert all("-c constraints.txt" in line for line in installs)
    assert "-e .[dev]" in installs[-1]
    assert "--index-url" not in installs[-1]


def test_text_with_quotes_and_dollars_reaches_the_translator_unchanged(checkout: Path) -> None:
    log, text = checkout / "log", """他说"$5 is 'ok'" `ls` $(pwd) \\n -- 好"""
    stub(checkout / ".venv" / "bin" / "python", log)
    make(checkout, "setup", "PYTHON=true")
    make(checkout, "translate", "PYTHON=true", f"TEXT={text}")
    assert asked(log)[-1] == f"translate.py -- {text}"


def test_clean_keeps_runs_and_data(checkout: Path) -> None:
    for folder in ("runs/mine", "data/mine", ".venv/bin", "src/dragoman/__pycache__", "tests", "scripts"):
        (checkout / folder).mkdir(parents=True)
    assert make(checkout, "clean").returncode == 0
    assert (checkout / "runs" / "mine").is_dir()
    assert (checkout / "data" / "mine").is_dir()
    assert not (checkout / ".venv").exists()
    assert not (checkout / "src" / "dragoman" / "__pycache__").exists()


def test_the_continuous_run_checks_and_tests() -> None:
    script = ROOT / ".ci" / "run"
    text = script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    assert {"make check", "make test"} <= {line.strip() for line in text.splitlines()}

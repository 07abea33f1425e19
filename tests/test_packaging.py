"""The distribution: packages, dependencies, and a wheel outside of the checkout."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import dragoman

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, SETUPTOOLS = PYPROJECT["project"], PYPROJECT["tool"]["setuptools"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = map(Requirement, sum(EXTRAS.values(), PROJECT["dependencies"]))
DIRECT = [requirement for requirement in REQUIREMENTS if requirement.name != "dragoman"]
# Distributions whose modules have another name, and what comes with them
MODULES = {
    "tensorboard": {"lightning"},  # imported by its logger
    "hydra-core": {"hydra", "omegaconf"},
    "opencc-python-reimplemented": {"opencc"},
    "datasets": {"datasets", "huggingface_hub"},
    "matplotlib": {"matplotlib", "cycler"},
    "pyyaml": {"yaml"},
    "fastapi": {"fastapi", "starlette", "pydantic"},
    "uvicorn": {"fastapi"},
    "python-multipart": {"fastapi"},
}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [re.fullmatch(r"([\w.-]+)==([\w.!]+)", line) for line in lines if not line.startswith("#")]
    assert all(pairs), "each line is name==version: no ranges, paths, hosts or local suffixes"
    return {canonicalize_name(pair[1]): pair[2] for pair in pairs if pair}


def test_each_dependency_is_pinned_within_its_range() -> None:
    versions = pins()
    assert not [name for name in versions if name.startswith(("nvidia", "cuda", "triton"))]
    assert not [r for r in DIRECT if versions.get(canonicalize_name(r.name), "0") not in r.specifier]


def test_malicious_releases_of_lightning_are_excluded() -> None:
    allowed = next(requirement for requirement in DIRECT if requirement.name == "lightning").specifier
    assert list(allowed.filter(["2.6.2", "2.6.3", "2.6.6"])) == ["2.6.6"]


def test_each_dependency_has_a_comment() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = text[text.index("dependencies = [") :].partition("\n]")[0].splitlines()[1:]
    assert [line for line in block if "# " not in line] == []


def test_the_version_is_said_once_more_in_the_package() -> None:
    assert dragoman.__version__ == PROJECT["version"]


def test_every_package_is_listed() -> None:
    folders = {path.parent for path in (ROOT / "src").rglob("*.py")}
    packages = {".".join(folder.relative_to(ROOT / "src").parts) for folder in folders}
    mapped = set(SETUPTOOLS["package-dir"]) - {""}
    assert sorted(packages | mapped) == SETUPTOOLS["packages"]
    assert all((folder / "__init__.py").exists() for folder in folders)


def imported() -> set[str]:
    """The top-level modules that the package imports anywhere."""
    names = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"dragoman"}


def test_dependencies_are_what_the_package_imports() -> None:
    extras = ("opencc", "vectors", "export", "huggingface", "serve", "completion")
    user = [*PROJECT["dependencies"], *(text for name in extras for text in EXTRAS[name])]
    names = [canonicalize_name(Requirement(text).name) for text in user]
    modules = [MODULES.get(name, {name}) for name in names]
    imports = imported()
    assert imports <= set.union(*modules)
    assert all(own & imports for own in modules)


def python(folder: Path, *command: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_wheel_trains_and_translates_in_an_empty_folder(tmp_path: Path) -> None:
    checkout, home = tmp_path / "checkout", tmp_path / "home"
    home.mkdir()
    unneeded = shutil.ignore_patterns("*.egg-info", "__pycache__")
    for name in ("src", "configs", "data/phrasebook", "data/pretrained"):
        shutil.copytree(ROOT / name, checkout / name, ignore=unneeded)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout / name)
    pip, alone = [sys.executable, "-m", "pip"], ["-q", "--no-deps"]
    python(tmp_path, *pip, "wheel", *alone, "--no-build-isolation", "-w", str(tmp_path), str(checkout))
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    data = "data/phrasebook/written", "data/phrasebook/composed", "data/pretrained"
    for source in ("configs", *data, "src/dragoman/fonts"):
        for path in (ROOT / source).rglob("*.*"):
            inside = path.relative_to(ROOT).as_posix().removeprefix("src/dragoman/").removeprefix("data/")
            assert f"dragoman/{inside}" in names or path.suffix == ".md"
    # A new environment sees the installed libraries, but not the checkout.
    python(tmp_path, sys.executable, "-m", "venv", "--without-pip", "venv")
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    programs = tmp_path / "venv" / "bin"
    python(tmp_path, *pip, "--python", str(programs / "python"), "install", *alone, str(wheel))
    place = python(home, str(programs / "python"), "-c", "import dragoman; print(dragoman.__file__)")
    assert Path(place).is_relative_to(tmp_path)
    translate = str(programs / "dragoman-translate")
    assert python(home, translate, "--engine", "torch", "好久不见") == "Long time no see\n"
    tiny = ("trainer.max_steps=4", "trainer.validate_every=2", "trainer.validation_pairs=10", "name=tiny")
    python(home, str(programs / "dragoman-train"), "experiment=smoke", *tiny)
    assert python(home, translate, "好久不见", "").count("\n") == 2
    code = "import sys; from dragoman import Translator; print('torch' in sys.modules)"
    assert python(home, str(programs / "python"), "-c", code) == "False\n"

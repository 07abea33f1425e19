"""The READMEs tell the truth: what they name exists, what they say to type can be typed.

The fast part reads both and checks every command, setting, file, option and test that they name; most strictly in the
table that leads from the study notes to the code. The slow part types
the commands of README.md, section by section, in a folder laid out like a checkout, with models that are trained for a
few steps.
"""

import ast
import functools
import gzip
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from omegaconf import OmegaConf

from dragoman.config import Config, check, to_config
from dragoman.experiments import CONFIGS, settings
from dragoman.training.run import flatten, plain

ROOT = Path(__file__).parents[1]
READMES = [path for path in (ROOT / "README.md", ROOT / "README.zh.md") if path.exists()]
PLACES = [ROOT, ROOT / "src" / "dragoman", ROOT / "tests", ROOT / "scripts"]
KEYS = {
    ".".join(parts[:n])
    for parts in (key.split(".") for key in flatten(plain(Config())))
    for n in range(1, len(parts) + 1)
}
GROUPS = {path.name for path in CONFIGS.iterdir() if path.is_dir()}
FILES = ("configs/", "scripts/", "src/", "tests/", "data/phrasebook", ".ci/")
NAMES_OF_FILES = (".py", ".json", ".yaml", ".png", ".log", ".gz", ".tsv", ".ckpt", ".txt", ".safetensors")


class Command(NamedTuple):
    """A line to type, and the section it stands in."""

    section: str
    line: str


def commands(readme: Path) -> list[Command]:
    """The lines of its blocks of shell, and those after a `$` in its blocks of output, without comments."""
    found, section, block = [], "", ""
    for line in readme.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            block = line.removeprefix("```") if not block else ""
        elif not block and line.startswith("## "):
            section = line.removeprefix("## ")
        elif block == "bash" or line.startswith("$ "):
            line = re.sub(r"\s+# .*", "", line.removeprefix("$ ").strip())
            if line and not line.startswith("#"):
                found.append(Command(section, line))
    return found


def code(readme: Path) -> list[str]:
    """Everything set as code in the running text and in tables, in order."""
    prose = re.sub(r"^```.*?^```", "", readme.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [found.strip() for found in re.findall(r"`([^`\n]+)`", prose)]


def words(line: str) -> list[list[str]]:
    """The programs that a line starts, each with its arguments; where output goes is left out."""
    line = re.sub(r"\d?>\s*\S+", "", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|")
    lexer.whitespace_split = True
    programs: list[list[str]] = [[]]
    for word in lexer:
        programs.append([]) if word == "|" else programs[-1].append(word)
    return [program for program in programs if program]


def concrete(text: str) -> str:
    """Placeholders in capitals as something that could stand there."""
    return re.sub(r"=N\b", "=1", text.replace("experiment=NAME", "experiment=zh_en").replace("=X", "=1"))


def typed(readme: Path) -> list[list[str]]:
    """All programs with their arguments, in blocks and in running text."""
    lines = [command.line for command in commands(readme)]
    lines += [text for text in code(readme) if re.match(r"(python|make) \S", text)]
    return [program for line in lines for program in words(concrete(line))]


@functools.cache
def accept(overrides: str) -> None:
    """Raises UserError where there is no such setting, or it has no such value. By Hydra only where need be."""
    words = shlex.split(overrides)
    if all("." in word.partition("=")[0] for word in words):
        to_config(OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.from_dotlist(words)))
    else:
        check(settings(words))


both = pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)


@both
def test_every_command_names_a_script_its_options_and_settings_that_exist(readme: Path) -> None:
    programs = [program for program in typed(readme) if program[0] == "python" and program[1] != "-m"]
    assert any(program[1] == "train.py" for program in programs)
    for _, script, *arguments in programs:
        assert (ROOT / script).is_file(), script
        if script == "train.py":
            check(settings(arguments))
            continue
        known = (ROOT / script).read_text(encoding="utf-8")
        known += (ROOT / "src" / "dragoman" / "doors.py").read_text(encoding="utf-8")
        for option in (word for word in arguments if re.match(r"--\w", word)):
            assert f'"{option}"' in known, f"{script} {option}"


@both
def test_every_target_of_make_exists(readme: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    for _, *arguments in (program for program in typed(readme) if program[0] == "make"):
        for word in arguments:
            variable, assigned, _ = word.partition("=")
            if assigned:
                assert re.search(rf"\b{variable}\b", makefile), word
            elif word.isascii():  # "make alone ..." is prose
                assert word in targets | {"alone"}, word


@both
def test_every_setting_in_the_text_exists(readme: Path) -> None:
    n = 0
    for text in map(concrete, code(readme)):
        if re.fullmatch(r"[a-z_.]+=\S+( [a-z_.]+=\S+)*", text) and text != "key=value":
            n += 1
            accept(text)
        elif re.fullmatch(r"[a-z_.]+=", text):
            assert text.removesuffix("=") in KEYS | GROUPS, text
        root = text.partition(".")[0]
        if re.fullmatch(r"[a-z]+(\.[a-z_]+)+", text) and root in GROUPS and not text.endswith(NAMES_OF_FILES):
            n += 1
            assert text in KEYS, text
        if text.startswith("'[{"):
            check([f"data.corpora={shlex.split(text)[0]}"])
    assert n > 10


@both
def test_every_file_and_folder_of_ours_exists(readme: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", readme.read_text(encoding="utf-8"))
    named = [text for text in code(readme) if text.startswith(FILES) or re.fullmatch(r"[\w/.-]+\.py", text)]
    for name in [*named, *(link for link in links if "://" not in link)]:
        if not re.search(r"\b[A-Z]{2,}\b(?!\.)|/mine", name):  # runs/NAME and the like
            assert any((place / name).exists() for place in PLACES), name


@both
def test_every_module_stands_in_the_tree(readme: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    for path in (ROOT / "src" / "dragoman").rglob("*.py"):
        if path.name != "__init__.py":
            assert re.search(rf"\b{path.name}\b", text), path.name


class Row(NamedTuple):
    """One of "From the notes to the code": what is taught, where, and what of ours it becomes."""

    concept: str
    notes: str
    code: str
    switch: str
    test: str


def notes_table(readme: Path) -> list[Row]:
    """The rows of five cells at the head of that section, without their heading."""
    text = readme.read_text(encoding="utf-8")
    section = re.split(r"^## (?:From the notes to the code|从笔记到代码)\n", text, flags=re.MULTILINE)[1]
    lines = [line for line in re.split(r"\n##+ ", section)[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [Row(*row) for row in cells if len(row) == len(Row._fields)][2:]


def names_in(cell: str) -> dict[str, list[str]]:
    """A cell of code: file -> what is named of it."""
    found: dict[str, list[str]] = {}
    for name in re.findall(r"`([^`]+)`", cell):
        if name.endswith(".py"):
            found[name] = names = []
        else:
            names.append(name)
    return found


def defined(path: Path) -> set[str]:
    """The functions, classes and names of a module, and the methods of its classes as Class.method."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            methods = [inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)]
            names |= {node.name, *(f"{node.name}.{method}" for method in methods)}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names.add(re.split("[:= ]", ast.unparse(node))[0])
    return names


def pointers(cell: str) -> list[tuple[str, str]]:
    """A cell of tests: each with its file, without its `test_`."""
    files = re.findall(r"`([\w/]*test_\w+\.py)` ([^`]+)", cell)
    return [(file, name) for file, names in files for name in re.findall(r"\w+", names)]


ROWS = [row for readme in READMES[:1] for row in notes_table(readme)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.concept[:50])
def test_a_row_of_the_notes_table_names_code_a_switch_and_tests_that_exist(row: Row) -> None:
    assert re.search(r"00[0-4]|paper", row.notes)
    code = names_in(row.code)
    for file, names in code.items():
        path = next((place / file for place in PLACES if (place / file).exists()), None)
        assert path, f"there is no {file}"
        for name in names:
            assert name in defined(path), f"{file} has no {name}"
    switches = re.findall(r"`([^`]+)`", row.switch)
    assert switches or row.switch == "-"
    doors = ["translate.py", "src/dragoman/doors.py", *(file for file in code if file.startswith("scripts/"))]
    options = "".join((ROOT / door).read_text(encoding="utf-8") for door in doors)
    for switch in switches:
        if switch.startswith("--"):
            assert f'"{switch.split()[0]}"' in options, switch
        else:
            accept(switch)
    assert pointers(row.test)
    for file, name in pointers(row.test):
        assert f"test_{name}" in defined(ROOT / "tests" / file), f"{file} has no test_{name}"


def test_both_languages_have_the_same_rows_from_the_notes_to_the_code() -> None:
    def facts(row: Row) -> list[object]:
        return [
            re.findall(r"[\d§.-]+", row.notes),
            names_in(row.code),
            re.findall(r"`[^`]+`", row.switch),
            pointers(row.test),
        ]

    one, *others = [[facts(row) for row in notes_table(readme)] for readme in READMES]
    assert all(other == one for other in others)


def test_both_languages_give_the_same_commands() -> None:
    if len(READMES) < 2:
        pytest.skip("there is only one README")
    one, other = ([command.line for command in commands(readme)] for readme in READMES)
    assert [line for line in one if line.isascii()] == [line for line in other if line.isascii()]


# What is left out of the slow part: set-up, tests within tests, what needs a browser or corpora that are elsewhere.
LEFT_OUT = re.compile(
    r"make (setup|check|test|test-all|smoke|bench|clean)\b|tensorboard|tatoeba|^export|bench_data"
)
TO_TYPE = [c for c in commands(READMES[0]) if not LEFT_OUT.search(c.line)] if READMES else []
SECTIONS = list(
    dict.fromkeys(command.section for command in TO_TYPE)
)  # later ones use what earlier ones made

# Every command with `python` goes through this: a few steps of a tiny model instead of hours.
SHORT = """#!{python}
import os, sys
arguments = sys.argv[1:]
if arguments and arguments[0] == "train.py" and "--cfg" not in arguments:
    replaced = ("model=", "data.max_tokens=", "data.tokenizer.vocab_size=", "trainer.max_time=")
    arguments = [word for word in arguments if not word.startswith(replaced)]
    arguments += ["model=tiny", "data.max_tokens=1024", "data.tokenizer.vocab_size=3000", "search=greedy"]
    arguments += ["trainer.accelerator=cpu", "trainer.max_steps=5", "trainer.validate_every=1"]
    arguments += ["trainer.validation_pairs=4", "trainer.samples=1"]
os.execv({python!r}, [{python!r}, *arguments])
"""


class Checkout:
    """A folder like a fresh checkout whose .venv is the python that runs the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("train.py", "translate.py", "scripts", "Makefile", "pyproject.toml", "constraints.txt"):
            (folder / name).symlink_to(ROOT / name)
        phrasebook = folder / "data" / "phrasebook"
        phrasebook.mkdir(parents=True)
        (phrasebook / "README.md").symlink_to(ROOT / "data" / "phrasebook" / "README.md")
        for split, n in (("train", 3000), ("validation", 20), ("test", 20)):  # enough to see that it works
            with gzip.open(ROOT / "data" / "phrasebook" / f"{split}.jsonl.gz") as whole:
                rows = whole.readlines()[:n]
            (phrasebook / f"{split}.jsonl.gz").write_bytes(gzip.compress(b"".join(rows)))
        python = folder / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(SHORT.format(python=sys.executable), encoding="utf-8")
        python.chmod(0o755)
        summed = "{ pwd; cat pyproject.toml constraints.txt; } | cksum | cut -d ' ' -f 1"
        stamp = subprocess.run(["bash", "-c", summed], cwd=folder, capture_output=True, text=True, check=True)
        (folder / ".venv" / f"installed-{stamp.stdout.strip()}").touch()
        pairs = (ROOT / "data" / "phrasebook" / "handwritten" / "people.tsv").read_text(encoding="utf-8")
        mine = [line.split("\t")[:2] for line in pairs.splitlines()][:600]
        (folder / "my.tsv").write_text("".join(f"{zh}\t{en}\n" for zh, en in mine), encoding="utf-8")
        for name, side in (("book.zh", 0), ("a.zh", 0), ("a.en", 1), ("b.en", 1)):
            text = "".join(row[side] + "\n" for row in mine[:5])
            (folder / name).write_text(text, encoding="utf-8")

    def type(self, line: str) -> "subprocess.CompletedProcess[str]":
        """Run a line as a person would, with .venv activated and no network."""
        print(f"$ {line}")
        gone = {"MAKEFLAGS", "MAKELEVEL", "VENV", "DRAGOMAN_DATA"}
        environment = {name: value for name, value in os.environ.items() if name not in gone}
        environment |= {
            "PATH": f"{self.folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(self.folder / "hf"),
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.folder, env=environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        print(done.stdout, done.stderr)
        return done


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout in which `make train` has been typed."""
    checkout = Checkout(tmp_path_factory.mktemp("checkout"))
    done = checkout.type("make train")
    assert done.returncode == 0, done.stderr
    assert (checkout.folder / "runs" / "zh_en" / "bundle").is_dir()
    return checkout


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_the_commands_of_a_section_work_as_they_stand(checkout: Checkout, section: str) -> None:
    for line in [command.line for command in TO_TYPE if command.section == section]:
        if "book.en" in line:  # an earlier line has written it, and it would not be overwritten
            (checkout.folder / "book.en").unlink(missing_ok=True)
        done = checkout.type(line)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert "Traceback" not in done.stderr

"""Names in src/dragoman/README.md, which must exist, and links of all READMEs."""

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dragoman.config import Config, ModelConfig, PositionConfig
from dragoman.model import position
from dragoman.model.attention import SCORES
from dragoman.model.position import POSITIONS
from dragoman.model.transformer import Transformer

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dragoman"
README = (PACKAGE / "README.md").read_text(encoding="utf-8")
FOLDERS = [ROOT / name for name in ("", "configs", "data", "data/phrasebook", "scripts", "tests", "src/dragoman")]


def rows(title: str, n_cells: int) -> list[list[str]]:
    """The rows of all tables of a section, without their headings."""
    section = README.split(f"\n## {title}\n")[1].split("\n## ")[0]
    tables = re.findall(r"^\|[-|]+\n((?:\|.*\n)+)", section, re.MULTILINE)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in "".join(tables).splitlines()]
    assert cells
    assert all(len(row) == n_cells for row in cells), title
    return cells


def check_names(cell: str, folders: list[Path], prefix: str = "") -> str:
    """Check that the files of a cell hold the names after them; return their text."""
    text, everything = "", ""
    for quoted in re.findall(r"`([^`]+)`", cell):
        if quoted.endswith(".py"):
            paths = [folder / quoted for folder in folders if (folder / quoted).exists()]
            assert paths, f"there is no {quoted}"
            text = paths[0].read_text(encoding="utf-8")
            everything += text
        else:
            for name in (prefix + quoted).split("."):
                assert re.search(rf"^ *(def |class )?{name}\b", text, re.MULTILINE), f"{cell}: {name}"
    return everything


def setting(key: str) -> tuple[Any, str]:
    """The section of a key, and its name there; fails where there is none."""
    *sections, name = key.split(".")
    section = functools.reduce(getattr, sections, Config())
    assert hasattr(section, name), key
    return section, name


def check_switch(switch: str, code: str) -> None:
    """Check that `--option` or `key=value` exists; a kind must be in `code`."""
    if switch.startswith("--"):
        programs = [*PACKAGE.glob("commands/*.py"), *ROOT.glob("scripts/**/*.py")]
        assert any(f'"{switch}"' in path.read_text(encoding="utf-8") for path in programs), switch
        return
    for word in switch.split():
        key, _, value = word.partition("=")
        if (ROOT / "configs" / key).is_dir():
            assert (ROOT / "configs" / key / f"{value}.yaml").exists(), word
            continue
        section, name = setting(key)
        if re.search("(kind|score|activation|normalization|schedule)$", key):
            assert f'"{value}"' in code, word
        else:
            dataclasses.replace(section, **{name: yaml.safe_load(value)})  # checks the value


def test_rows_of_the_notes_table_name_what_exists() -> None:
    for concept, notes, code, switch, tests in rows("From the notes to the code", 5):
        assert re.search("[\u4e00-\u9fff]", concept), f"no Chinese: {concept}"
        assert re.search("00[0-4]|paper", notes), concept
        text = check_names(code, [PACKAGE, ROOT])
        assert check_names(tests, [ROOT / "tests"], prefix="test_"), concept
        for quoted in re.findall(r"`([^`]+)`", switch):
            check_switch(quoted, text)


def test_rows_of_the_registries_name_what_exists() -> None:
    for _, code, _, switch in rows("One place for each thing", 4):
        assert check_names(code, [PACKAGE])
        key = switch.strip("`")
        check_switch(key, code) if key.startswith("--") else setting(key)


def test_the_example_is_a_position_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "(Position)" in block]
    (kind,) = re.findall(r'POSITIONS\["(\w+)"\]', code)
    monkeypatch.setitem(POSITIONS, kind, None)  # removed again after the test
    exec(code, vars(position).copy())
    config = ModelConfig(d_model=16, d_ff=32, n_heads=2, position=PositionConfig(kind=kind))
    model = Transformer(config, src_vocab_size=9, tgt_vocab_size=9).eval().requires_grad_(False)
    src, tgt = torch.tensor([[4, 5, 3]]), torch.tensor([[2, 6, 7, 8]])
    cache = model.begin(src, None)
    for t in range(4):
        logits = model.step(tgt[:, t : t + 1], cache)
    torch.testing.assert_close(logits, model(src, tgt, None)[:, -1], atol=1e-5, rtol=1e-5)


def test_measured_tables_have_every_scheme() -> None:
    lengths = {row[0].split(",")[0] for row in rows("What length does", 9)}
    choices = " ".join(row[0] for row in rows("What the choices do to translation", 4))
    assert lengths == set(POSITIONS)
    assert {*POSITIONS, *SCORES} == {*re.findall(r"(?:kind|score)=(\w+)", choices), "sinusoidal", "scaled_dot"}


def test_every_module_stands_in_the_tree() -> None:
    tree = README.split("\n## The package\n")[1].split("\n## ")[0]
    for path in PACKAGE.rglob("*.py"):
        assert path.name == "__init__.py" or re.search(rf"\b{path.stem}\b", tree), path


def test_links_of_the_readmes_resolve() -> None:
    for folder in FOLDERS:
        for readme in folder.glob("README*.md"):
            for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", readme.read_text(encoding="utf-8")):
                assert "://" in link or (folder / link).exists(), f"{readme}: {link}"

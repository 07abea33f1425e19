"""Rates of warnings, and their table in the model card."""

import runpy
import shutil
from functools import partial
from pathlib import Path

from dragoman import bundle
from dragoman.config import SearchConfig
from dragoman.data.text import Pair
from dragoman.translation.translator import Translator

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle"
EVALUATE = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "evaluate.py"))
PAIRS = [Pair("好久不见。", "I have not seen you for long."), Pair("谢谢你。", "I thank you very much.")]


def test_damaged_sources_have_warnings() -> None:
    translate = partial(Translator.load(GOLDEN).stream, search=SearchConfig(kind="greedy"), direction="zh_en")
    table = EVALUATE["warning_table"](translate, PAIRS)
    assert table == EVALUATE["warning_table"](translate, PAIRS)
    (_, *kinds), _, *rows = (line.strip("| ").split(" | ") for line in table.splitlines()[2:])
    rates = {name: dict(zip(kinds, map(float, row), strict=True)) for name, *row in rows}
    assert len(rates) == 5
    assert "for 2 sentences" in table
    assert rates["unseen characters"]["characters outside the vocabulary"] == 100
    source = "source not written in the script of 'zh'"
    assert rates["wrong language"][source] == 100
    assert rates["good"]["characters outside the vocabulary"] == rates["good"][source] == 0
    for row in rates.values():
        assert max(row.values()) == row["any"] <= 100


def test_the_card_has_one_section_of_a_title(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(GOLDEN, folder)
    card = (folder / "README.md").read_text("utf-8")
    for text in ("first", "1,200 sentences"):
        EVALUATE["add_to_card"](folder / "README.md", "Warnings", text)
    new = (folder / "README.md").read_text("utf-8")
    assert "1,200 sentences" in new
    assert "first" not in new
    assert new.index("## Warnings") < new.index("## Licence")
    assert [line for line in card.splitlines() if line not in new.splitlines()] == []
    bundle.load(folder)

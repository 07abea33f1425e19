"""Rates of warnings, and their table in the model card."""

import shutil
from pathlib import Path

from dragoman import bundle
from dragoman.config import SearchConfig
from dragoman.data.text import Pair
from dragoman.evaluation.scores import N_INPUTS, as_markdown, inputs, warning_rates
from dragoman.languages import Direction
from dragoman.translation.lines import KINDS
from dragoman.translation.translator import Translator

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle"
PAIRS = [Pair("好久不见。", "I have not seen you for long."), Pair("谢谢你。", "I thank you very much.")]


def test_each_damage_has_its_warning() -> None:
    assert len(inputs(PAIRS)) == N_INPUTS
    assert inputs(PAIRS) == inputs(PAIRS)
    rates = warning_rates(Translator.load(GOLDEN), PAIRS, SearchConfig(kind="greedy"), direction=Direction("zh", "en"))
    assert rates["unseen characters"]["characters not seen"] == 100
    assert rates["wrong language"]["source not written in the script"] == 100
    assert rates["good"]["characters not seen"] == rates["good"]["source not written in the script"] == 0
    for row in rates.values():
        assert max(row[kind] for kind in KINDS) <= row["any"] <= 100


def test_the_card_has_one_section_of_a_title(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(GOLDEN, folder)
    card = (folder / "README.md").read_text("utf-8")
    rates = {"good": {"any": 2.0}}
    for text in ("first", as_markdown(rates, 1200)):
        bundle.add_to_card(folder, "Warnings", text)
    new = (folder / "README.md").read_text("utf-8")
    assert "1,200 sentences" in new
    assert "first" not in new
    assert new.index("## Warnings") < new.index("## Licence")
    assert [line for line in card.splitlines() if line not in new.splitlines()] == []
    bundle.load(folder)

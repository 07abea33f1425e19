"""A bundle that was made once, with its translations: as long as its format is read, it says the same.

Where this fails, the old bundles of everybody who trained a model say something else than they did. Mend that, or
raise bundle.FORMAT_VERSION and convert; the folder is made anew for a new format only (tests/golden/make.py), beside
the old one.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman import bundle
from dragoman.search.search import SearchConfig
from dragoman.translator import Translator

GOLDEN = Path(__file__).parent / "golden"
WRITTEN = json.loads((GOLDEN / "translations.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator.load(GOLDEN / "bundle", "cpu")


@pytest.mark.parametrize(
    "written", WRITTEN, ids=lambda written: f"{written['direction']} {written['search']['kind']}"
)
def test_the_golden_bundle_says_what_it_always_said(translator: Translator, written: dict[str, Any]) -> None:
    search = SearchConfig(**written["search"])
    now = translator.translate(written["lines"], search, direction=written["direction"])
    for line, translation, before in zip(written["lines"], now, written["found"], strict=True):
        texts = [hypothesis.text for hypothesis in translation.hypotheses]
        assert texts == [text for text, _ in before], line
        totals = [sum(hypothesis.token_scores) for hypothesis in translation.hypotheses]
        assert totals == pytest.approx([total for _, total in before], abs=1e-4), line


def test_the_golden_bundle_has_learnt_something(translator: Translator) -> None:
    """Of translations at random any would be as good as another."""
    for zh, en in (("晚安。", "Good night."), ("大家好！", "Hello, everyone!")):
        assert translator.translate([zh])[0].text == en
        assert translator.translate([en])[0].text == zh


def test_the_golden_bundle_is_small_and_saving_it_again_changes_no_weight(tmp_path: Path) -> None:
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 300_000
    bundle.save(bundle.load(GOLDEN / "bundle"), tmp_path / "again", dtype="float16")
    for name in ("model.safetensors", "joint.model"):
        assert (tmp_path / "again" / name).read_bytes() == (GOLDEN / "bundle" / name).read_bytes()

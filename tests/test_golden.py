"""Golden test: the translations of a bundle of format_version 1 stay the same.

Where this fails, the bundles of all users translate differently. Repair it, or raise bundle.FORMAT_VERSION and
convert. The folder is made again only for a new format (tests/golden/make.py, at commit 27a00b7), beside the old one.
"""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from dragoman import bundle
from dragoman.config import SearchConfig
from dragoman.translation.translator import Translator

GOLDEN = Path(__file__).parent / "golden"
RECORDS = json.loads((GOLDEN / "translations.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator.load(GOLDEN / "bundle", "cpu")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: f"{record['direction']} {record['search']}")
def test_the_translations_stay_the_same(translator: Translator, record: dict[str, Any]) -> None:
    search = SearchConfig(**record["search"])
    results = translator.translate(record["lines"], search, direction=record["direction"])
    for line, result, expected in zip(record["lines"], results, record["found"], strict=True):
        if any(unicodedata.category(character)[0] == "S" for character in line):
            continue  # the vocabulary lacks these symbols: they became words, and are copied now
        assert [hypothesis.text for hypothesis in result.hypotheses] == [text for text, _ in expected], line
        totals = [sum(hypothesis.token_scores) for hypothesis in result.hypotheses]
        assert totals == pytest.approx([total for _, total in expected], abs=1e-4), line


def test_saving_again_changes_no_weight_and_no_setting(tmp_path: Path) -> None:
    bundle.save(bundle.load(GOLDEN / "bundle"), tmp_path / "again", dtype="float16")
    for name in ("model.safetensors", "joint.model"):
        assert (tmp_path / "again" / name).read_bytes() == (GOLDEN / "bundle" / name).read_bytes()
    infos = (bundle.load_info(folder) for folder in (tmp_path / "again", GOLDEN / "bundle"))
    again, before = ({**vars(info), "src_tokenizer": None, "tgt_tokenizer": None} for info in infos)
    assert again == before  # a new setting has its default

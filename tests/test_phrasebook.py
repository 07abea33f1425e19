"""The embedded corpus: as its script builds it, large, leak-free, tested on unseen combinations."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import build_phrasebook as build  # noqa: E402
import phrasebook_words as words  # noqa: E402

HAN = re.compile(r"[\u3400-\u9fff]")


@pytest.fixture(scope="module")
def handwritten() -> dict[str, str]:
    return build.read_handwritten(build.HOME / "handwritten")


@pytest.fixture(scope="module")
def composed(handwritten: dict[str, str]) -> list[build.Composed]:
    return build.compose_all(handwritten, seed=build.SEED)


@pytest.fixture(scope="module")
def rows(handwritten: dict[str, str], composed: list[build.Composed]) -> build.Splits:
    return build.split(handwritten, composed, seed=build.SEED)


def test_the_committed_files_hold_what_the_script_builds(rows: build.Splits) -> None:
    assert build.stale(rows, build.HOME) == []


def test_building_twice_gives_the_same_bytes(rows: build.Splits, tmp_path: Path) -> None:
    written = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        build.write(rows, tmp_path / name)
        written.append([(tmp_path / name / f"{split}.jsonl.gz").read_bytes() for split in build.SPLITS])
    assert written[0] == written[1]


def test_check_says_in_one_line_that_files_are_stale(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(build.HOME, tmp_path / "data" / "phrasebook")
    (tmp_path / "data" / "phrasebook" / "test.jsonl.gz").unlink()
    command = [sys.executable, str(tmp_path / "scripts" / "build_phrasebook.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["stale: test; run this script"]


def test_the_corpus_is_as_large_as_promised(
    handwritten: dict[str, str], composed: list[build.Composed], rows: build.Splits
) -> None:
    assert len(handwritten) >= 1500
    assert len({(pair.zh, pair.en) for pair in composed}) >= 25_000
    assert len({pair.combination[0] for pair in composed}) >= 40  # templates
    assert len(rows["validation"]) == len(rows["test"]) == build.HELD_OUT
    assert sum(map(len, rows.values())) == len(handwritten) + len(composed)


def test_the_card_gives_the_true_numbers(
    handwritten: dict[str, str], composed: list[build.Composed], rows: build.Splits
) -> None:
    card = (build.HOME / "README.md").read_text("utf-8")
    templates = len({pair.combination[0] for pair in composed})
    assert f"(`handwritten/*.tsv`) | {len(handwritten):,} |" in card
    assert f"composed from {templates} templates (`grammar/*.tsv`) | {len(composed):,} |" in card
    assert f"| {' / '.join(f'{len(rows[name]):,}' for name in build.SPLITS)} |" in card


def test_every_chinese_sentence_has_one_english_one(rows: build.Splits) -> None:
    chinese = [zh for pairs in rows.values() for zh, _ in pairs]
    assert len(chinese) == len(set(chinese))


def test_no_sentence_of_either_side_is_in_two_splits(rows: build.Splits) -> None:
    for side in (0, 1):
        sets = [{build.bare(pair[side]) for pair in rows[name]} for name in build.SPLITS]
        assert sum(map(len, sets)) == len(set().union(*sets))


def test_held_out_combinations_are_new_but_every_part_of_them_is_known(
    composed: list[build.Composed], rows: build.Splits
) -> None:
    made = {(pair.zh, pair.en): pair for pair in composed}
    train = [made[pair] for pair in rows["train"] if pair in made]
    held = [made[pair] for pair in rows["validation"] + rows["test"]]  # KeyError if written by hand
    seen = Counter(unit for pair in train for unit in build.units(pair))
    assert not {pair.combination for pair in train} & {pair.combination for pair in held}
    assert [unit for pair in held for unit in build.units(pair) if seen[unit] < 3] == []


def test_chinese_is_chinese_english_is_english_and_nothing_is_left_unfilled(rows: build.Splits) -> None:
    for zh, en in (pair for pairs in rows.values() for pair in pairs):
        assert HAN.search(zh), zh
        assert re.search("[A-Za-z]", en), en
        assert not HAN.search(en), en
        assert not re.search(r"[{}\[\]|\t]|  ", zh + en), (zh, en)
        assert zh == zh.strip(), zh
        assert en == en.strip(), en


def test_composed_english_has_its_articles_and_capitals(composed: list[build.Composed]) -> None:
    wrong = re.compile(r"(?<![\w'])([Aa] [aeio]\w|[Aa]n [^aeiou]|(I|you|we|they) (is|has|does)\b)")
    for pair in composed:
        assert not wrong.search(pair.en), pair.en
        assert pair.en[0].isupper(), pair.en
        assert pair.en[-1] in ".?!", pair.en


@pytest.mark.parametrize(
    ("zh", "en"),
    [
        ("好久不见", "Long time no see"),
        ("我爱你", "I love you"),
        ("你打我", "You hit me"),
        ("我打你", "I hit you"),
    ],
)
def test_the_sentences_everybody_tries_first_are_in_training(rows: build.Splits, zh: str, en: str) -> None:
    found = {text for source, text in rows["train"] if build.bare(source) == zh}
    assert found, zh
    assert all(build.bare(text) == build.bare(en) for text in found), found


def test_the_hub_loader_sees_three_splits_and_no_grammar(rows: build.Splits, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset(str(build.HOME), cache_dir=str(tmp_path))
    assert {name: len(split) for name, split in loaded.items()} == {name: len(rows[name]) for name in rows}
    assert loaded["test"].column_names == ["translation"]
    assert tuple(loaded["test"][0]["translation"][side] for side in ("zh", "en")) == rows["test"][0]


@pytest.mark.parametrize("line", ["只有一边", "一\tone\ttwo", "一\t"])
def test_a_line_that_is_no_pair_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "bad.tsv").write_text(f"好\tGood\n{line}\n", "utf-8")
    with pytest.raises(ValueError, match=r"bad\.tsv line 2"):
        build.read_handwritten(tmp_path)


def test_two_translations_of_one_sentence_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("好\tGood\n", "utf-8")
    (tmp_path / "b.tsv").write_text("好\tFine\n", "utf-8")
    with pytest.raises(ValueError, match=r"b\.tsv line 1.*a\.tsv line 1"):
        build.read_handwritten(tmp_path)


def test_english_forms_follow_the_rules() -> None:
    assert words.verb_forms("try on", {})["s"] == "tries on"
    assert words.verb_forms("stop", {})["ing"] == "stopping"
    assert words.verb_forms("visit", {})["past"] == "visited"
    assert words.compared("heavy", {})["more"] == "heavier"
    assert words.compared("expensive", {})["most"] == "most expensive"
    assert words.compared("hot", {})["evermore"] == "hotter and hotter"


def test_numbers_read_as_they_are_said() -> None:
    said = {2: "两", 10: "十", 12: "十二", 22: "二十二", 200: "两百", 2500: "两千五百"}
    assert {n: words.zh_number(n) for n in said} == said
    written = {12: "twelve", 22: "twenty-two", 90: "ninety", 2500: "two thousand five hundred"}
    assert {n: words.en_number(n) for n in written} == written

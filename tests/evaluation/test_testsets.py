"""Test sets from a run, a corpus, and files."""

import json
import runpy
import shutil
from pathlib import Path

import pytest

from dragoman.config import CorpusConfig, DataConfig, TokenizerConfig
from dragoman.data.prepare import prepare
from dragoman.errors import UserError
from dragoman.evaluation import testsets
from dragoman.languages import Direction

ZH_EN, EN_ZH = Direction("zh", "en"), Direction("en", "zh")
PAIRS = [("好久不见。", "Long time no see."), ("我爱你。", "I love you."), ("谢谢。", "Thank you.")]


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> CorpusConfig:
    """A folder with a test split in which the first sentence has a second reference."""
    rows = [{"translation": {"zh": zh, "en": en}, "references": [en]} for zh, en in PAIRS]
    rows[0]["references"] = [PAIRS[0][1], "It's been ages."]
    (tmp_path / "corpus").mkdir()
    write(tmp_path / "corpus" / "test.jsonl", *map(json.dumps, rows))
    return CorpusConfig(path=str(tmp_path / "corpus"))


def test_a_corpus_brings_its_references(corpus: CorpusConfig) -> None:
    forwards = testsets.of_corpus(corpus, "test", ZH_EN, ZH_EN, None)
    assert [pair.src for pair in forwards] == [zh for zh, _ in PAIRS]
    assert forwards[0].references == ("Long time no see.", "It's been ages.")
    # References in the other language are left out.
    backwards = testsets.of_corpus(corpus, "test", EN_ZH, ZH_EN, None)
    assert [pair.references for pair in backwards] == [(zh,) for zh, _ in PAIRS]


def test_a_tsv_without_a_header_serves_both_directions(tmp_path: Path) -> None:
    # As in training, entities become characters, and a pair with an empty side is dropped.
    rows = [*map("\t".join, PAIRS), "你&amp;我\tyou &amp; me", "\tHello"]
    config = CorpusConfig(path=str(write(tmp_path / "my.tsv", *rows)))
    forwards, backwards = (testsets.of_corpus(config, "test", way, ZH_EN, None) for way in (ZH_EN, EN_ZH))
    assert [(pair.src, pair.tgt) for pair in forwards] == [*PAIRS, ("你&我", "you & me")]
    assert [(pair.tgt, pair.src) for pair in backwards] == [*PAIRS, ("你&我", "you & me")]


def test_a_set_is_converted_to_the_other_script(corpus: CorpusConfig) -> None:
    pytest.importorskip("opencc")
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "evaluate.py"))
    pairs = testsets.of_corpus(corpus, "test", ZH_EN, ZH_EN, None)
    converted = script["in_script"](pairs, "hant", ZH_EN)
    assert [pair.src for pair in converted] == ["好久不見。", "我愛你。", "謝謝。"]
    assert [pair.references for pair in converted] == [pair.references for pair in pairs]


@pytest.mark.parametrize(("split", "part"), [("tset", "did you mean 'test'"), ("train", "no split 'train'")])
def test_a_missing_split_is_an_error(corpus: CorpusConfig, split: str, part: str) -> None:
    with pytest.raises(UserError, match=part):
        testsets.of_corpus(corpus, split, ZH_EN, ZH_EN, None)


def test_files_with_several_references(tmp_path: Path) -> None:
    src = write(tmp_path / "news.zh", "好\u2028久", "早")
    references = [write(tmp_path / "a", "Long", "Early"), write(tmp_path / "b", "Ages", " ")]
    pairs = testsets.of_files(src, references)
    assert pairs[0].src == "好 久"
    assert [pair.references for pair in pairs] == [("Long", "Ages"), ("Early",)]


@pytest.mark.parametrize(("lines", "part"), [(["好", "早"], "2 lines"), ([], "no pair")])
def test_unusable_files_are_an_error(tmp_path: Path, lines: list[str], part: str) -> None:
    references = [write(tmp_path / "en", *lines[1:])]
    with pytest.raises(UserError, match=part):
        testsets.of_files(write(tmp_path / "zh", *lines), references)


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run, or an older one"):
        testsets.of_run(tmp_path, "test", ZH_EN, ZH_EN)


def test_a_run_brings_its_own_split(corpus: CorpusConfig, tmp_path: Path) -> None:
    train = [json.dumps({"zh": f"我有{k}本书。", "en": f"I have {k} books."}) for k in range(200)]
    write(tmp_path / "corpus" / "train.jsonl", *train)
    tokenizer = TokenizerConfig(vocab_size=330)
    prepare(DataConfig(corpora=[corpus], cache=str(tmp_path / "cache"), tokenizer=tokenizer), tmp_path)
    shutil.rmtree(tmp_path / "corpus")  # it is needed no longer
    forwards = testsets.of_run(tmp_path, "test", ZH_EN, ZH_EN)
    assert sorted(pair.src for pair in forwards) == sorted(zh for zh, _ in PAIRS)
    assert {len(pair.references) for pair in forwards} == {1, 2}
    backwards = testsets.of_run(tmp_path, "test", EN_ZH, ZH_EN)
    assert [pair.references for pair in backwards] == [(pair.src,) for pair in forwards]

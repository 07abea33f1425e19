"""Clean text, and entries of data.corpora that contradict themselves."""

import sys
import time
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from dragoman.data.corpus import MOST_MARKS, CorpusConfig, clean_text, defects
from dragoman.data.datamodule import DataConfig
from dragoman.errors import UserError

any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates too


@given(any_text)
@example("\ufeff好久\u2028不见\r\n")
def test_cleaning_twice_changes_nothing_more(text: str) -> None:
    assert clean_text(clean_text(text)) == clean_text(text)


@given(any_text)
def test_clean_text_is_one_line_of_nfc_that_utf8_can_hold(text: str) -> None:
    clean = clean_text(text)
    assert clean.encode().decode() == clean
    assert unicodedata.is_normalized("NFC", clean)
    assert len(clean.splitlines()) <= 1
    assert clean == " ".join(clean.split(" "))
    assert not any(unicodedata.category(character) == "Cc" for character in clean)


@given(any_text)
def test_a_text_without_defects_changes_only_in_its_white_space(text: str) -> None:
    if not defects(text):
        assert clean_text(text).split() == text.split()


def test_each_defect_is_named() -> None:
    assert defects("\ufeffa") == ["byte order mark"]
    assert defects("a\x00b") == ["NUL"]
    assert defects("a\r") == ["carriage return"]
    assert defects("a\u2028b") == ["line separator"]
    assert defects("a\x07b") == ["control character"]
    assert defects(b"a\xffb".decode(errors="surrogateescape")) == ["invalid UTF-8"]
    assert defects("e\u0301") == ["not NFC"]
    assert defects("你好，world！ “quoted” 🦖 👩‍👩‍👧") == []


HEAPS = {
    "out of order": "\u0315\u0300", "in order": "\u0300", "one that becomes two": "\u0344", "Tibetan": "\u0f73",
    "beyond the BMP": "\U0001e944\U0001d165",
}  # fmt: skip


@pytest.mark.parametrize("kind", HEAPS)
def test_a_heap_of_marks_is_cut_and_counted_in_time_that_grows_with_it_and_not_with_its_square(
    kind: str,
) -> None:
    text, begin = "a" + HEAPS[kind] * (200_000 // len(HEAPS[kind])) + " b", time.process_time()
    clean = clean_text(text)
    assert "heap of marks" in defects(text)
    assert time.process_time() - begin < 2  # at 80,000 marks it was 19 s
    assert len(clean) <= MOST_MARKS + 3
    assert (clean[0] in "aàä", clean[-2:]) == (True, " b")
    assert clean_text(clean) == clean
    assert defects(clean) == []


@given(
    st.lists(
        st.sampled_from(["a", "\u0315", "\u0300", "\u0344", "\u0f73", "가", "か", "\u3099"]),
        max_size=MOST_MARKS,
    )
)
def test_a_text_without_a_heap_is_only_normalised(parts: list[str]) -> None:
    text = "x" + "".join(parts)
    assert (
        clean_text(text) == unicodedata.normalize("NFC", text)
        or len(unicodedata.normalize("NFD", text)) > MOST_MARKS
    )


def test_every_mark_that_is_sorted_counts_as_one() -> None:
    for character in map(chr, range(sys.maxunicode + 1)):
        first = unicodedata.normalize("NFD", character)[0]
        if unicodedata.combining(character) or unicodedata.combining(first):
            assert "heap of marks" in defects("a" + character * (MOST_MARKS + 1)), hex(ord(character))


def test_words_on_either_side_of_a_line_separator_stay_apart() -> None:
    assert clean_text("one\u2028two\x85three\x0bfour") == "one two three four"


def test_punctuation_and_full_width_forms_survive() -> None:
    text = "你好，世界！（ＡＢＣ）“引号”……"
    assert clean_text(text) == text


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"path": "a", "src_path": "b", "tgt_path": "c"},
        {"src_path": "b"},
        {"path": "a", "repeat": 0},
        {"path": "a", "split": "trian"},
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(entry: dict) -> None:
    with pytest.raises(UserError, match=r"data\.corpora"):
        CorpusConfig(**entry)


def test_the_configuration_survives_omegaconf() -> None:
    schema = OmegaConf.structured(DataConfig)
    merged = OmegaConf.merge(schema, {"corpora": [{"path": "a", "repeat": 2}], "tokenizer": {"kind": "char"}})
    config = OmegaConf.to_object(merged)
    assert isinstance(config, DataConfig)
    assert config.corpora == [CorpusConfig(path="a", repeat=2)]
    assert config.tokenizer.kind == "char"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("script", "hants", "did you mean 'hant'"),
        ("leak", "pairs", "did you mean 'pair'"),
        ("max_tokens", 10, "data.max_length"),
        ("max_ratio", 0.5, "data.max_ratio"),
        ("tgt", "zh", "both 'zh'"),
        ("validation_size", -1, "data.validation_size"),
    ],
)
def test_impossible_values_are_refused_naming_the_key(key: str, value: object, told: str) -> None:
    with pytest.raises(UserError, match=told):
        DataConfig(**{key: value})

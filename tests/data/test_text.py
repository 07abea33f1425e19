"""Cleaning of single sentences."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.text import clean_text


@given(st.text(st.characters(exclude_categories=())))
def test_cleaning_twice_changes_nothing_more(text: str) -> None:
    clean = clean_text(text)
    assert clean_text(clean) == clean
    assert clean.encode().decode() == clean


def test_a_sentence_is_cleaned() -> None:
    for text, clean in {
        "I go\u2028to  school.\r": "I go to school.",
        "\ufeffI\x00 go\u200b.": "I go.",
        "I \ud800 go": "I \ufffd go",
        "I▁go": "I_go",
        "cafe\u0301": "café",
        "我有２５本书，“好”。": "我有２５本书，“好”。",
        "<s> 👩‍👩‍👧 𠮷": "<s> 👩‍👩‍👧 𠮷",
    }.items():
        assert clean_text(text) == clean

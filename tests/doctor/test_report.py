"""The doctor's report: sums, a self-contained page, and text that is escaped."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import escape

from dragoman.doctor.report import page, summary
from dragoman.doctor.survey import describe

HOSTILE = ["</td><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "{{ corpus }}", '"', "[red]"]


@pytest.fixture
def sick(doctor, sound) -> dict:
    """The report on a corpus with faults, some of them text that would be markup."""
    faults = [("Good.", "好"), ("這個國家的語言", "a\u200bb"), ("\udcff", "\u202e")]
    return doctor([*sound(60), *faults, *((f"好{text}", f"good\ufffd{text}") for text in HOSTILE)])


def test_report_is_plain_data(sick) -> None:
    assert json.loads(json.dumps(sick, ensure_ascii=False).encode()) == sick


def test_scripts_of_chinese_are_counted(doctor) -> None:
    report = doctor([("这个国家", "this country"), ("這個國家", "this country"), ("这個", "this"), ("你好", "hello")])
    assert report["scripts"] == {"simplified": 1, "traditional": 1, "mixed": 1, "the same in both scripts": 1}
    assert "the same in both scripts 1, simplified 1, traditional 1, mixed 1." in summary(report).plain


def test_page_needs_nothing_but_itself(healthy) -> None:
    text = page(healthy).decode()
    assert not any(part in text for part in ("<script", "<link", "<img", " src=", " href=", "@import", "url("))
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert "No action needed" in text


def test_text_of_a_corpus_never_becomes_markup(sick) -> None:
    text = page(sick).decode()
    assert "<script" not in text
    assert "<img" not in text
    assert all(str(escape(part)) in text for part in [*HOSTILE, "⟨U+202E⟩"])


def test_page_shows_findings_settings_and_suspects(sick) -> None:
    text = page(sick).decode()
    shown = [finding["message"] for finding in sick["findings"]]
    shown += sick["settings"]
    shown += [reason for suspect in sick["suspects"] for reason in suspect["reasons"]]
    assert [part for part in ["Needs your attention", *shown] if str(escape(part)) not in text] == []


def test_summary_names_what_needs_attention(sick, healthy) -> None:
    lines = str(summary(sick)).splitlines()
    assert lines[0].endswith("read 68 of train.")
    assert "Needs your attention: swapped languages, 1 pair (1.5%), first in row 61 of train." in lines
    assert lines[-3] == "Handled by cleaning: replacement character 5, wrong script 3, invisible character 2."
    assert lines[-2].startswith("Few pairs for a new model: train.py experiment=adapt")
    assert lines[-1] == "Proposed settings: data.script=hans"
    assert "No action needed." in str(summary(healthy))


def test_lengths_and_ratios_count_each_pair(healthy, sound) -> None:
    pairs = sound(300)
    for side, lengths in enumerate(healthy["lengths"]):
        assert sum(lengths["bars"]) == 300
        assert lengths["mean"] == pytest.approx(sum(len(pair[side]) for pair in pairs) / 300, abs=0.01)
    assert sum(healthy["ratios"]["bars"]) == 300
    assert [part["pairs"] for part in healthy["parts"]] == [300]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(max_size=30), min_size=1))
def test_sentences_are_described_one_by_one(texts) -> None:
    table = describe(texts, "zh", "en")
    assert table.tobytes() == b"".join(describe([text], "zh", "en").tobytes() for text in texts)
    assert table["length"].tolist() == list(map(len, texts))

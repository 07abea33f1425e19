"""Which pairs are dropped, which sentences mended, and that all of it is counted."""

import pytest

from dragoman.data.cleaning import COPY, EMPTY, TOO_LONG, WRONG_SCRIPT, Cleaner, Report
from dragoman.data.corpus import MAX_CHARS
from dragoman.data.readers import Rows
from dragoman.errors import UserError

GOOD = ("好久不见。", "Long time no see.")


def clean(
    *pairs: tuple[str, str], split: str = "train", src: str = "zh", tgt: str = "en", drop_copies: bool = True
) -> tuple[list[tuple[str, str]], Report]:
    cleaner = Cleaner(src=src, tgt=tgt, script="keep", drop_copies=drop_copies, report=Report())
    rows = cleaner.clean(Rows([a for a, _ in pairs], [b for _, b in pairs]), split)
    return list(zip(rows.src, rows.tgt, strict=True)), cleaner.report


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (("", "Good."), EMPTY),
        (("好。", " \ufeff\u200b"), EMPTY),
        (("好" * 1_000_000, "Good."), TOO_LONG),
        (("Good.", "好。"), WRONG_SCRIPT),
        (("OK", "Okay"), WRONG_SCRIPT),
        (("好 OK", "OK 好"), WRONG_SCRIPT),
    ],
)
def test_a_bad_training_pair_is_dropped_and_counted(pair: tuple[str, str], reason: str) -> None:
    kept, report = clean(GOOD, pair, GOOD)
    assert kept == [GOOD, GOOD]
    assert report.dropped == {"train": {reason: 1}}
    assert report.read == {"train": 3}


def test_a_source_equal_to_its_target_is_dropped_where_copies_are_unwanted() -> None:
    assert clean(("a b", "a b"), src="x", tgt="y")[1].dropped == {"train": {COPY: 1}}
    assert clean(("a b", "a b"), src="x", tgt="y", drop_copies=False)[0] == [("a b", "a b")]


def test_scripts_of_unknown_languages_are_not_judged() -> None:
    assert clean(("好", "x"), ("x", "好"), src="tlh", tgt="ja")[0] == [("好", "x"), ("x", "好")]


def test_validation_and_test_are_mended_but_only_empty_or_endless_pairs_leave_them() -> None:
    odd = [("Good.", "好。"), ("same", "same"), ("好\r", "e\u0301")]
    kept, report = clean(*odd, ("", "x"), ("x" * (MAX_CHARS + 1), "y"), split="test")
    assert kept == [("Good.", "好。"), ("same", "same"), ("好", "é")]
    assert report.dropped == {"test": {EMPTY: 1, TOO_LONG: 1}}


def test_each_mended_sentence_is_counted_under_its_defect() -> None:
    broken = b"go\xffod".decode(errors="surrogateescape")
    _, report = clean(("\ufeff好。\r", "a\x00b\x07"), ("好\u2028好", "e\u0301"), ("好", broken), GOOD)
    assert report.mended == {
        "byte order mark": 1,
        "carriage return": 1,
        "NUL": 1,
        "control character": 1,
        "line separator": 1,
        "not NFC": 1,
        "invalid UTF-8": 1,
    }


def test_references_are_kept_with_the_target_first_and_without_repetition() -> None:
    cleaner = Cleaner(src="zh", tgt="en", script="keep", drop_copies=True, report=Report())
    rows = cleaner.clean(Rows(["好", "是"], ["Good.", "Yes."], [["Fine.", "Good. ", "Fine."], []]), "test")
    assert rows.references == [["Good.", "Fine."], ["Yes."]]


def test_references_of_the_other_side_are_left_out_when_a_corpus_is_read_backwards() -> None:
    cleaner = Cleaner(src="en", tgt="zh", script="keep", drop_copies=True, report=Report())
    rows = cleaner.clean(Rows(["Good."], ["好"], [["Good.", "Fine."]]), "test")
    assert rows.references == [["好"]]


def test_a_report_survives_json_and_its_table_shows_every_count() -> None:
    _, report = clean(GOOD, ("", "x"), ("Good.", "好\r"))
    report.kept["train"] = 1
    assert Report.from_dict(report.as_dict()) == report
    table = report.table()
    for word in ("read", "kept", EMPTY, WRONG_SCRIPT, "carriage return 1", "3"):
        assert word in table


def test_the_explanation_of_an_empty_corpus_names_the_likely_cause() -> None:
    swapped = clean(*[(b, a) for a, b in [GOOD] * 3])[1]
    assert "the right way round" in swapped.explain()
    gb = "好久不见".encode("gb18030").decode(errors="surrogateescape")
    assert "iconv" in clean((gb, "Long time no see."))[1].explain()


def test_conversion_of_scripts_without_opencc_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opencc", None)
    with pytest.raises(UserError, match=r"pip install -e '.\[opencc\]'"):
        Cleaner(src="zh", tgt="en", script="hans", drop_copies=True, report=Report())


def test_scripts_are_converted_on_the_chinese_side_only() -> None:
    pytest.importorskip("opencc")
    cleaner = Cleaner(src="en", tgt="zh", script="hans", drop_copies=True, report=Report())
    rows = cleaner.clean(Rows(["Hànzì"], ["漢語很難"], [["漢語很難"]]), "test")
    assert (rows.src, rows.tgt, rows.references) == (["Hànzì"], ["汉语很难"], [["汉语很难"]])

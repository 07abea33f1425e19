"""Each fault planted in a clean corpus is found, on its line; the clean corpus has none."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.corpus import CorpusConfig
from dragoman.doctor import findings
from dragoman.doctor.characters import KIND, Sentences, folded, kinds, reads
from dragoman.doctor.faults import (
    COPY,
    EMOJI,
    EMPTY,
    FAULTS,
    HTML,
    MOJIBAKE,
    RARE,
    REPLACED,
    SCRIPT,
    SWAPPED,
    TAG,
    TOKEN,
    TOO_LONG,
    WIDE,
)
from dragoman.doctor.page import summary
from dragoman.errors import UserError
from dragoman.languages import reads as reads_one
from planted import ask, clean_pairs, places, write

CLEAN = clean_pairs(300)
LINE = 41  # where a fault is planted
SRC, TGT = CLEAN[LINE - 1]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ask(write(tmp_path_factory.mktemp("clean"), CLEAN))


def test_a_clean_corpus_has_no_finding_but_that_sentences_have_other_translations(
    clean: dict[str, Any],
) -> None:
    assert {finding["kind"] for finding in clean["findings"]} <= {findings.TARGETS, findings.SOURCES}
    assert clean["settings"] == []


PLANTED = {
    SWAPPED: (TGT, SRC),
    SCRIPT: ("The weather is fine", TGT),
    EMPTY: (SRC, ""),
    TOO_LONG: (SRC * 2000, TGT),
    COPY: (TGT, TGT),
    REPLACED: (SRC + "\ufffd", TGT),
    MOJIBAKE: (SRC.encode().decode("gb18030", "replace").replace("\ufffd", "") + "锟斤拷", TGT),
    HTML: (SRC, "Tom &amp; Mary"),
    TAG: (SRC, f"<i>{TGT}</i>"),
    TOKEN: (SRC, f"{TGT}</s>"),
    WIDE: (SRC + "１２", TGT),
    EMOJI: (SRC, TGT + "😀"),
    RARE: ("𠮷" + SRC, TGT),
    "byte order mark": ("\ufeff" + SRC, TGT),
    "NUL": (SRC, TGT + "\x00"),
    "carriage return": (SRC, TGT + "\r"),
    "line separator": (SRC, "one\u2028two"),
    "control character": (SRC, "\u202e" + TGT),
    "invalid UTF-8": (SRC + "\udcff", TGT),
    "mark of sentencepiece": (SRC, "▁" + TGT),
    findings.MIX: ("這個國家的語言很難學", TGT),
    findings.DUPLICATE: CLEAN[LINE - 3],
    findings.NUMBERS: ("我有25本书。", "I have 38 books."),
}


def test_every_fault_there_is_a_word_for_is_planted_below() -> None:
    assert set(FAULTS) - set(PLANTED) == {"simplified", "traditional"}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_fault_is_found_on_its_line_and_nowhere_else(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "MINORITY", 0)
    pairs = [*CLEAN]
    pairs[LINE - 1] = PLANTED[kind]
    report = ask(write(tmp_path, pairs))
    assert places(report, kind) == [LINE]
    assert json.loads(json.dumps(report)) == report


@pytest.mark.parametrize(
    "text",
    [
        "café",
        "It’s",
        "naïve “quoted”",
        "Füße",
        "«ÉTÉ»",
        "„GRÜẞ“",
        "mañana…",
        "привет",
        "你好，世界",
        "弄",
        "联通",
        "É»",
    ],
)
def test_text_that_was_read_rightly_is_no_mojibake_and_read_wrongly_it_is(text: str, tmp_path: Path) -> None:
    report = ask(write(tmp_path, [("x", text)]), src="fr", tgt="de")
    assert places(report, MOJIBAKE) == []
    misread = [
        text.encode().decode(codec)
        for codec in ("latin-1", "cp1252", "gb18030")
        if _decodes(text.encode(), codec) and (codec == "gb18030") == (len(text) > 2 and text > "一")
    ]
    for wrong in misread:
        if wrong != text:
            assert places(ask(write(tmp_path, [("x", wrong)]), src="fr", tgt="de"), MOJIBAKE) == [1], wrong


def _decodes(read: bytes, codec: str) -> bool:
    try:
        read.decode(codec)
    except UnicodeDecodeError:
        return False
    return True


def test_a_corpus_the_wrong_way_round_is_told_as_such(tmp_path: Path) -> None:
    report = ask(write(tmp_path, [(tgt, src) for src, tgt in CLEAN]))
    told = next(finding for finding in report["findings"] if finding["kind"] == SWAPPED)
    assert told["pairs"] == len(CLEAN)
    assert "en-zh, not zh-en" in told["told"]


def test_the_fewer_hanzi_of_one_script_lead_to_the_setting_that_converts_them(tmp_path: Path) -> None:
    traditional = [("這個國家的語言很難學", "The language is hard.")] * 10
    assert {"data.script=hans"} == {s["word"] for s in ask(write(tmp_path, CLEAN + traditional))["settings"]}
    most = [("這個國家的語言很難學", "The language is hard.")] * 500
    assert {"data.script=hant"} == {s["word"] for s in ask(write(tmp_path, CLEAN + most))["settings"]}


def folder(path: Path, **splits: list[tuple[str, str]]) -> CorpusConfig:
    path.mkdir()
    for split, pairs in splits.items():
        with gzip.open(path / f"{split}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({"translation": {"zh": a, "en": b}}) + "\n" for a, b in pairs)
    return CorpusConfig(path=str(path))


def test_leaks_are_told_by_how_much_of_a_pair_leaked_and_near_ones_beside_what_they_are_near(
    tmp_path: Path,
) -> None:
    held = ("她在去年冬天的旅行中学会了滑雪", "She learnt to ski on her journey last winter")
    near = ("她在去年冬天的旅行中学会了滑冰！", "She LEARNT to ski on her journeys last winter.")
    one_side = (held[0], "Something else entirely")
    train = [*CLEAN]
    train[9:9], train[19:19], train[29:29] = [held], [near], [one_side]
    report = ask(folder(tmp_path / "corpus", train=train, test=[held]))
    assert places(report, findings.PAIR_LEAK) == [10]
    assert places(report, findings.NEAR_LEAK) == [20]
    assert places(report, findings.SENTENCE_LEAK) == [30]
    (example,) = next(f for f in report["findings"] if f["kind"] == findings.NEAR_LEAK)["examples"]
    assert (example["src"], example["near"]) == (near[0], list(held))
    assert "data.leak=sentence" in {setting["word"] for setting in report["settings"]}


LOST = {
    "wrong script": ([(tgt, tgt) for _, tgt in CLEAN], [SCRIPT, COPY]),
    "a file against itself": ([(src, src) for src, _ in CLEAN], [SCRIPT, COPY]),
    "no text on one side": ([(src, "") for src, _ in CLEAN], [EMPTY]),
    "a third of them": ([(src, "" if i % 3 else tgt) for i, (src, tgt) in enumerate(CLEAN)], [EMPTY]),
    "the wrong way round": ([(tgt, src) for src, tgt in CLEAN], [SWAPPED]),
}


@pytest.mark.parametrize("kind", LOST)
def test_a_corpus_of_which_cleaning_leaves_little_or_nothing_asks_for_a_hand(
    kind: str, tmp_path: Path
) -> None:
    pairs, reasons = LOST[kind]
    report = ask(write(tmp_path, pairs))
    told = {finding["kind"]: finding for finding in report["findings"]}
    n = sum(report["cleaning"]["dropped"]["train"].values())
    assert told[findings.MANY]["weight"] == "act"
    assert told[findings.MANY]["pairs"] == n > 200 - len(pairs) // 3
    assert f"drops {n} of the 300 pairs of train: {reasons[0]} {n}" in told[findings.MANY]["told"]
    assert all(reason in told[findings.MANY]["told"] for reason in reasons)
    assert (findings.NONE in told) == (n == len(pairs))
    assert "Nothing asks for your hand" not in summary(report)


@pytest.mark.parametrize("content", ["\t\n" * 200, "\n" * 200])
def test_a_corpus_of_blank_lines_is_told_to_hold_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("zh\ten\n" + content)
    told = {finding["kind"] for finding in ask(CorpusConfig(path=str(tmp_path / "a.tsv")))["findings"]}
    assert {findings.MANY, findings.NONE} <= told


@pytest.mark.parametrize(("n_empty", "told"), [(60, False), (61, True)])
def test_the_hand_is_asked_for_beyond_a_fifth(n_empty: int, told: bool, tmp_path: Path) -> None:
    report = ask(write(tmp_path, [(src, "") for src, _ in CLEAN[:n_empty]] + CLEAN[n_empty:]))
    assert places(report, findings.MANY) == (list(range(1, n_empty + 1)) if told else [])
    assert findings.NONE not in {finding["kind"] for finding in report["findings"]}


def test_a_corpus_all_of_which_leaks_leaves_nothing_to_train_on(tmp_path: Path) -> None:
    report = ask(folder(tmp_path / "corpus", train=CLEAN, test=CLEAN))
    assert places(report, findings.NONE) == list(range(1, len(CLEAN) + 1))
    alone = ask(folder(tmp_path / "alone", test=CLEAN))
    assert findings.NONE not in {finding["kind"] for finding in alone["findings"]}


def test_it_is_told_when_not_all_that_was_held_out_is_sought_in_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("leaks.MOST", "survey.MOST", "findings.INDEXED"):
        monkeypatch.setattr(f"dragoman.doctor.{module}", 40)
    held = CLEAN[:60]
    held[7] = ("好", "")  # is dropped, and counts for nothing
    report = ask(folder(tmp_path / "corpus", train=CLEAN[60:], test=held[:30], validation=held[30:]))
    (told,) = (each for each in report["findings"] if each["kind"] == findings.UNSOUGHT)
    # Test is read first: 29 of it and 11 of validation.
    assert [(place["split"], place["line"]) for place in told["places"]] == [
        ("validation", line) for line in range(12, 31)
    ]
    assert "only the first 40 sentences" in told["told"]
    fewer = ask(folder(tmp_path / "fewer", train=CLEAN[60:], test=held[:41]))
    assert findings.UNSOUGHT not in {finding["kind"] for finding in fewer["findings"]}


def test_leaks_are_found_from_one_corpus_into_another(tmp_path: Path) -> None:
    held = write(tmp_path, [CLEAN[5], ("第一", "First")], "held")
    held.split = "validation"
    report = ask(write(tmp_path, CLEAN), held)
    assert places(report, findings.PAIR_LEAK) == [6]


@pytest.mark.parametrize("kind", ["tsv", "tsv with header", "jsonl with blank lines"])
def test_lines_are_those_of_the_file(kind: str, tmp_path: Path) -> None:
    rows = [f"{a}\t{b}" for a, b in CLEAN[:60]]
    rows[30] = "Good.\t好"
    expected, name = 31, "a.tsv"
    if kind == "tsv with header":
        rows, expected = ["zh\ten", *rows], 32
    elif kind.startswith("jsonl"):
        rows = [json.dumps(dict(zip(("zh", "en"), row.split("\t"), strict=True))) for row in rows]
        rows[10:10], expected, name = ["", ""], 33, "a.jsonl"
    (tmp_path / name).write_text("\n".join(rows), encoding="utf-8")
    assert places(ask(CorpusConfig(path=str(tmp_path / name))), SWAPPED) == [expected]


def test_the_keys_of_the_report_are_a_promise(clean: dict[str, Any]) -> None:
    assert set(clean) == {
        "format", "corpus", "languages", "parts", "findings", "suspects", "settings", "cleaning", "lengths",
        "ratios", "coverage", "tokens",
    }  # fmt: skip
    assert clean["format"] == 1
    for finding in clean["findings"]:
        assert set(finding) == {"kind", "weight", "pairs", "told", "first", "places", "examples"}
        assert set(finding["first"]) == {"corpus", "split", "line"}


def test_the_measures_add_up(clean: dict[str, Any]) -> None:
    for side, lengths in enumerate(clean["lengths"]):
        assert sum(lengths["bars"]) == lengths["n"] == len(CLEAN)
        assert lengths["mean"] == pytest.approx(sum(len(p[side]) for p in CLEAN) / len(CLEAN), abs=0.01)
    assert sum(clean["ratios"]["bars"]) == len(CLEAN)
    chinese = clean["coverage"][0]
    assert chinese["characters"] == sum(len(src) for src, _ in CLEAN)
    assert chinese["different"] == len({character for src, _ in CLEAN for character in src})
    assert list(chinese["needed"].values()) == sorted(chinese["needed"].values())
    assert clean["cleaning"]["read"] == {"train": len(CLEAN)}


def test_characters_lost_are_the_rarest_and_those_beyond_the_coverage(tmp_path: Path) -> None:
    pairs = [("好" * 100, "a")] * 60 + [("龘", "b")]
    side = ask(write(tmp_path, pairs))["coverage"][0]
    assert (side["n_lost"], side["lost"]) == (1, [["龘", 1]])
    assert side["needed"]["1"] == 2


def test_the_most_suspicious_pair_is_the_wrong_one_and_it_is_told_why(tmp_path: Path) -> None:
    pairs = clean_pairs(1500)
    pairs[77] = (pairs[77][0][:2], "Nobody said that this would be 1984 " * 12)
    report = ask(write(tmp_path, pairs))
    assert 0 < len(report["suspects"]) <= 20
    first = report["suspects"][0]
    assert first["line"] == 78
    assert any("characters, where" in reason for reason in first["reasons"])
    assert [s["nats"] for s in report["suspects"]] == sorted(
        (s["nats"] for s in report["suspects"]), reverse=True
    )


def test_a_corpus_of_no_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no pair"):
        ask(write(tmp_path, []))


@given(
    st.lists(st.text(st.characters(exclude_categories=(), max_codepoint=0x3FFFF), max_size=30), max_size=8)
)
def test_scripts_are_judged_as_everywhere_in_the_program_and_nothing_crashes(texts: list[str]) -> None:
    counts = Sentences.of(texts).counts()
    assert counts.sum() == sum(map(len, texts))
    for language in ("zh", "en", "ja", "ko"):
        assert reads(counts, language).tolist() == [reads_one(language, text) for text in texts]


def test_hanzi_of_one_script_only_are_told_apart_and_common_ones_tell_nothing() -> None:
    table = kinds()
    assert {table[ord(hanzi)] for hanzi in "这国语说话学见长门马"} == {KIND["hans"]}
    assert {table[ord(hanzi)] for hanzi in "這國語說話學見長門馬"} == {KIND["hant"]}
    assert {table[ord(hanzi)] for hanzi in "我你他好人大小中天"} == {KIND["han"]}


def test_folding_ignores_case_and_width_and_drops_what_is_no_letter() -> None:
    assert [folded()[ord(character)] for character in "aAＡ，. 8８"] == [97, 97, 97, 0, 0, 0, 56, 56]

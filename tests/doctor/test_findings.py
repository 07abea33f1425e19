"""Detection of each fault that is added to a sound corpus, in its row."""

import pytest

from dragoman.config import CorpusConfig
from dragoman.doctor.survey import is_mojibake
from dragoman.errors import UserError

SRC, TGT = "我们的朋友今天在花园里看见书。", "Our friends see books in the garden today."
PLANTED = {
    "swapped languages": (TGT, SRC),
    "wrong script": ("The weather is fine", TGT),
    "empty side": (SRC, ""),
    "too long": (SRC * 2000, TGT),
    "source equals target": ("2025", "2025"),
    "replacement character": (SRC + "\ufffd", TGT),
    "mojibake": (SRC, TGT + "â€™"),
    "markup": (SRC, f"<i>{TGT}</i>"),
    "invisible character": (SRC, "\u202e" + TGT),
    "invalid UTF-8": (SRC + "\udcff", TGT),
}


def test_planted_faults_are_found_in_their_rows(doctor, sound, rows_of) -> None:
    pairs = sound(100)
    rows = dict(zip(PLANTED, range(5, 100, 6), strict=False))
    for kind, row in rows.items():
        pairs[row - 1] = PLANTED[kind]
    report = doctor(pairs)
    assert {kind: rows_of(report, kind) for kind in PLANTED} == {kind: [row] for kind, row in rows.items()}


def test_sound_corpus_needs_no_action(healthy) -> None:
    assert {finding["severity"] for finding in healthy["findings"]} <= {"cleaned"}
    assert healthy["settings"] == healthy["suspects"] == []


def test_line_ends_of_windows_are_no_fault(doctor, sound) -> None:
    path = doctor.folder / "a.tsv"
    path.write_bytes("".join(f"{src}\t{tgt}\r\n" for src, tgt in sound(60)).encode())
    assert doctor(CorpusConfig(path=str(path)))["findings"] == []


def test_mojibake_differs_from_sound_text() -> None:
    western = [(text, "latin-1") for text in ("café", "« été\xa0»", "It’s", "Füße", "«ÉTÉ»", "mañana…", "привет")]
    for text, codec in [*western, ("It’s", "cp1252"), ("你好，世界！", "gb18030")]:
        assert not is_mojibake(text), text
        assert is_mojibake(text.encode().decode(codec)), text
    # The GB 2312 bytes of the first are also UTF-8.
    assert not is_mojibake("联通")
    assert is_mojibake("价格锟斤拷")


def test_corpus_the_wrong_way_round_is_named(doctor, sound) -> None:
    (finding,) = doctor([(tgt, src) for src, tgt in sound(60)])["findings"]
    assert (finding["kind"], finding["pairs"]) == ("swapped languages", 60)
    assert "written like en, the target like zh" in finding["message"]


def test_rarer_script_leads_to_its_setting(doctor, sound) -> None:
    for n, option in ((10, "data.script=hans"), (900, "data.script=hant")):
        report = doctor(sound(60) + [(f"這個國家的語言很難學{i}", f"Hard {i}.") for i in range(n)])
        assert report["settings"] == [option]


def test_japanese_has_no_chinese_script(doctor, sound) -> None:
    pairs = [(f"この国の会議室へ{src}", tgt) for src, tgt in sound(60)]
    assert doctor(pairs, src="ja")["settings"] == []


def test_duplicates_ignore_case_width_and_marks(doctor, rows_of) -> None:
    pairs = [("好 Ａ", "Good A."), ("好 Ａ", "Good A."), ("好 a！", "good a"), ("…", "!"), ("……", "!!")]
    assert rows_of(doctor(pairs), "duplicate") == [2, 3]


def test_leaks_of_pairs_and_of_sentences_are_told_apart(doctor, sound, rows_of) -> None:
    src, tgt = "她在旅行中学会了滑雪", "She learnt to ski"
    train = sound(40)
    train[9], train[19], train[29] = (src, tgt), (f"{src}！", "She LEARNT to ski."), (src, "Another")
    report = doctor(doctor.corpus(train), doctor.corpus([(src, tgt)], "test"))
    assert rows_of(report, "leak of a pair") == [10, 20]
    assert rows_of(report, "leak of a sentence") == [30]
    assert report["settings"] == ["data.leak=sentence"]


def test_fault_of_a_fifth_of_the_pairs_needs_attention(doctor, sound) -> None:
    pairs = sound(100)
    for n_empty, severity in ((20, "cleaned"), (21, "act")):
        report = doctor([(src, "") for src, _ in pairs[:n_empty]] + pairs[n_empty:])
        assert [f["severity"] for f in report["findings"] if f["kind"] == "empty side"] == [severity]


def test_rows_count_from_one_in_every_corpus(doctor, sound, rows_of) -> None:
    path = doctor.folder / "a.tsv"
    path.write_text("zh\ten\n好\tGood.\nGood.\t好\n", encoding="utf-8")
    report = doctor(doctor.corpus(sound(30)), CorpusConfig(path=str(path)))
    assert rows_of(report, "swapped languages") == [2]


def test_files_of_unequal_length_are_examined(doctor, sound, rows_of) -> None:
    corpus = doctor.corpus(sound(300))
    path = doctor.folder / "train.en"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[60:]))
    report = doctor(corpus)
    assert report["parts"][0]["pairs"] == 240
    assert rows_of(report, "unequal line counts") == [240]


def test_suspects_are_the_worst_pairs_with_reasons(doctor, sound) -> None:
    pairs = sound(300)
    pairs[77] = (pairs[77][0][:2], "Nobody said that this would be 1984 " * 12)
    worst = doctor(pairs)["suspects"][0]
    assert worst["row"] == 78
    assert "unusual lengths" in worst["reasons"]


def test_at_most_twenty_suspects_in_order(doctor, sound) -> None:
    pairs = sound(300)
    for i in range(0, 300, 5):
        src, tgt = pairs[i]
        pairs[i] = [(tgt, src), (src + "\ufffd", tgt), (src + "锟斤拷", tgt)][i // 5 % 3]
    suspects = doctor(pairs)["suspects"]
    assert len(suspects) == 20
    assert [s["points"] for s in suspects] == sorted((s["points"] for s in suspects), reverse=True)


def test_corpus_without_pairs_is_an_error(doctor) -> None:
    with pytest.raises(UserError, match="no pair"):
        doctor([])

"""Preparing from end to end: what is dropped, what is cut, what is found again, and what a run remembers."""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corpora import PAIRS, translation, write_folder, write_tsv
from dragoman.data import digests, hub, prepare
from dragoman.data.cleaning import DUPLICATE, LEAK, SHARED, TOO_LONG, UNEQUAL
from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import TranslationData
from dragoman.data.store import Texts
from dragoman.data.tokenizer import TokenizerConfig
from dragoman.errors import UserError

Prepare = Callable[..., TranslationData]

_opened: list[str] | None = None  # names of the files that are opened, while somebody watches
_hooked = False


def watch(opened: list[str] | None) -> None:
    """Note every file that this process opens from here on, or no longer. (A hook cannot be taken off again.)"""
    global _opened, _hooked
    _opened = opened
    if not _hooked:
        sys.addaudithook(lambda event, details: _note(event, details))
        _hooked = True


def _note(event: str, details: tuple) -> None:
    if _opened is not None and event == "open":
        _opened.append(str(details[0]))


def train_pairs(data: TranslationData) -> list[tuple[str, str]]:
    """The training pairs as the model will see them, read back from their ids."""
    src, tgt = data.prepared.train_ids()
    return [
        (data.src_tokenizer.decode(src[i].tolist()), data.tgt_tokenizer.decode(tgt[i].tolist()))
        for i in range(len(src))
    ]


def held_out(data: TranslationData) -> list[tuple[str, str]]:
    return [(pair.src, pair.tgt) for pair in (*data.validation, *data.test)]


def dropped(data: TranslationData) -> dict[str, int]:
    return data.prepared.report.dropped.get("train", {})


def test_every_pair_comes_out_as_it_went_in(prepared: Prepare, tmp_path: Path) -> None:
    data = prepared(CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", PAIRS))))
    assert set(train_pairs(data) + held_out(data)) <= set(PAIRS)
    lost = sum(dropped(data).values())
    assert len(train_pairs(data)) + len(held_out(data)) + lost == len(PAIRS)


def test_cut_splits_share_no_sentence_with_the_rest_or_each_other(prepared: Prepare, tmp_path: Path) -> None:
    data = prepared(
        CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", PAIRS * 2 + [("谢谢。", "Thanks.")])))
    )
    splits = [
        train_pairs(data),
        held_out(data)[: len(data.validation)],
        held_out(data)[len(data.validation) :],
    ]
    assert all(splits)
    for one in splits:
        for other in splits:
            if one is not other:
                assert not {src for src, _ in one} & {src for src, _ in other}
                assert not {tgt for _, tgt in one} & {tgt for _, tgt in other}


def test_shuffling_the_corpus_changes_nothing_but_the_order(prepared: Prepare, tmp_path: Path) -> None:
    shuffled = random.Random(1).sample(PAIRS, len(PAIRS))
    one = prepared(CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", PAIRS))))
    two = prepared(CorpusConfig(path=str(write_tsv(tmp_path / "b.tsv", shuffled))))
    assert sorted(train_pairs(one)) == sorted(train_pairs(two))
    assert sorted(held_out(one)) == sorted(held_out(two))


def test_a_duplicate_is_dropped_and_leaves_the_fingerprint_as_it_was(
    prepared: Prepare, tmp_path: Path
) -> None:
    one = prepared(CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", PAIRS))))
    two = prepared(CorpusConfig(path=str(write_tsv(tmp_path / "b.tsv", [*PAIRS, PAIRS[3], PAIRS[7]]))))
    assert dropped(two)[DUPLICATE] == 2
    assert one.fingerprint == two.fingerprint


def test_other_content_or_another_vocabulary_or_repeat_gives_another_fingerprint(
    prepared: Prepare, tmp_path: Path
) -> None:
    path = str(write_tsv(tmp_path / "a.tsv", PAIRS))
    fewer = str(write_tsv(tmp_path / "b.tsv", PAIRS[:-1]))
    fingerprints = {
        prepared(CorpusConfig(path=path)).fingerprint,
        prepared(CorpusConfig(path=fewer)).fingerprint,
        prepared(CorpusConfig(path=path, repeat=2)).fingerprint,
        prepared(CorpusConfig(path=path), tokenizer=TokenizerConfig(vocab_size=350)).fingerprint,
    }
    assert len(fingerprints) == 4


@pytest.mark.parametrize(("leak", "lost"), [("pair", 1), ("sentence", 4)])
def test_training_pairs_that_are_also_held_out_are_removed(
    prepared: Prepare, tmp_path: Path, leak: str, lost: int
) -> None:
    train = [("好。", "Good."), ("好。", "Fine."), ("是。", "Right."), ("对。", "Yes."), *PAIRS]
    folder = write_folder(
        tmp_path / "corpus",
        {
            "train": [translation(*pair) for pair in train],
            "validation": [translation("好。", "Good.")],
            "test": [translation("是。", "Yes.")],
        },
    )
    data = prepared(CorpusConfig(path=str(folder)), leak=leak)
    assert dropped(data) == {LEAK: lost}
    assert SHARED not in dropped(data)
    assert ("好。", "Good.") not in train_pairs(data)


def test_a_training_pair_made_of_a_further_reference_is_a_leak_too(prepared: Prepare, tmp_path: Path) -> None:
    test = translation("是。", "Yes.") | {"references": ["Yes.", "Yeah."]}
    train = [translation(*pair) | {"references": [pair[1]]} for pair in [("是。", "Yeah."), *PAIRS]]
    rows = {"train": train, "test": [test]}
    data = prepared(CorpusConfig(path=str(write_folder(tmp_path / "corpus", rows))))
    assert dropped(data)[LEAK] == 1
    assert data.test[0].references == ("Yes.", "Yeah.")


def test_splits_of_all_corpora_are_used_and_only_missing_ones_are_cut(
    prepared: Prepare, tmp_path: Path
) -> None:
    half = len(PAIRS) // 2
    one = write_folder(
        tmp_path / "one",
        {"train": [translation(*p) for p in PAIRS[:half]], "test": [translation("第一。", "One.")]},
    )
    two = write_folder(
        tmp_path / "two",
        {"train": [translation(*p) for p in PAIRS[half:]], "test": [translation("第二。", "Two.")]},
    )
    data = prepared(CorpusConfig(path=str(one)), CorpusConfig(path=str(two)))
    assert [pair.tgt for pair in data.test] == ["One.", "Two."]
    assert 0 < len(data.validation) <= len(PAIRS) // 50


def test_plain_files_can_be_any_split(prepared: Prepare, tmp_path: Path) -> None:
    data = prepared(
        CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", PAIRS))),
        CorpusConfig(path=str(write_tsv(tmp_path / "b.tsv", [("第一。", "One.")])), split="validation"),
        test_size=0,
    )
    assert [pair.src for pair in data.validation] == ["第一。"]
    assert len(data.test) == 0


def test_too_long_and_unequal_pairs_are_dropped_from_train(prepared: Prepare, tmp_path: Path) -> None:
    long = ("我喜欢书。" * 60, "I like the book. " * 60)
    unequal = ("我", "I like the book and the flowers and the dog and the apples and the hot tea today")
    data = prepared(
        CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", [*PAIRS, long, unequal]))), max_length=64
    )
    assert dropped(data)[TOO_LONG] == 1
    assert dropped(data)[UNEQUAL] == 1


def test_a_second_preparation_writes_nothing_and_says_so(
    prepared: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", PAIRS)))
    first = prepared(corpus)
    assert "MB of disk" in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    second = prepared(corpus, run="another")
    told = capsys.readouterr().out
    assert "Encoded corpus found" in told
    assert "Tokenizer found" in told
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert {path: time for path, time in after.items() if not path.name.endswith(".lock")} == {
        path: time for path, time in before.items() if not path.name.endswith(".lock")
    }
    assert first.fingerprint == second.fingerprint


def test_another_vocabulary_does_not_clean_the_texts_again(
    prepared: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", PAIRS)))
    prepared(corpus)
    capsys.readouterr()
    prepared(corpus, tokenizer=TokenizerConfig(vocab_size=350))
    told = capsys.readouterr().out
    assert "Clean texts found" in told
    assert "Training the joint tokenizer" in told


def test_separate_vocabularies_know_only_their_own_side(prepared: Prepare, tmp_path: Path) -> None:
    corpus = CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", PAIRS)))
    data = prepared(corpus, tokenizer=TokenizerConfig(vocab_size=340, vocabulary="separate"))
    assert data.src_tokenizer.sha256 != data.tgt_tokenizer.sha256
    spelt = [
        piece for piece in data.src_tokenizer.pieces(data.src_tokenizer.encode("dog")) if piece[0] == "<"
    ]
    assert len(spelt) == 3  # in bytes
    assert set(train_pairs(data)) <= set(PAIRS)


def test_a_vocabulary_that_shrinks_is_told(
    prepared: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", PAIRS[:20])))
    data = prepared(corpus, tokenizer=TokenizerConfig(vocab_size=5000, kind="unigram"))
    assert f"shrank from 5,000 to {len(data.src_tokenizer):,}" in capsys.readouterr().out


def test_the_report_lies_in_the_run_and_adds_up(prepared: Prepare, tmp_path: Path) -> None:
    rows = [*PAIRS, ("", "x"), PAIRS[0], ("Good.", "好。\r")]
    data = prepared(CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", rows))))
    report = json.loads((tmp_path / "run" / "cleaning.json").read_text())
    assert report == {**data.report, "notes": []}
    assert report["read"] == {"train": len(rows)}
    assert report["kept"]["train"] == len(train_pairs(data))
    cut = report["kept"]["validation"] + report["kept"]["test"]
    assert report["kept"]["train"] + cut + sum(report["dropped"]["train"].values()) == len(rows)
    assert report["mended"] == {"carriage return": 1}


def test_the_copy_task_survives_cleaning_and_is_split(prepared: Prepare) -> None:
    data = prepared(CorpusConfig(path="copy"), src="x", tgt="y", drop_copies=False, max_length=40)
    assert data.train_size > 15_000
    assert len(data.validation) == len(data.test) or abs(len(data.validation) - len(data.test)) < 20
    assert all(pair.src == pair.tgt for pair in data.validation)


@pytest.mark.parametrize("content", ["", "\n\n\n", "Good.\t好。\n"])
def test_a_corpus_of_which_nothing_is_left_is_refused(
    prepared: Prepare, tmp_path: Path, content: str
) -> None:
    (tmp_path / "a.tsv").write_text(content, encoding="utf-8")
    with pytest.raises(UserError):
        prepared(CorpusConfig(path=str(tmp_path / "a.tsv")))
    assert not list((tmp_path / "cache").glob("texts-*"))


def test_no_corpora_at_all_are_refused(prepared: Prepare) -> None:
    with pytest.raises(UserError, match=r"data\.corpora is empty"):
        prepared()


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hub that is never there; the list receives the datasets it was asked for."""
    asked: list[str] = []

    def unreachable(path: str) -> str:
        asked.append(path)
        return "no route to host"

    monkeypatch.setattr(hub, "unreachable", unreachable)
    return asked


OPTIONAL = CorpusConfig(path="owner/absent", optional=True)


def test_a_run_goes_on_without_an_optional_corpus_and_says_so_in_two_lines(
    prepared: Prepare, tmp_path: Path, no_hub: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    data = prepared(OPTIONAL, CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", PAIRS))))
    assert len(data.notes) == 2
    assert "cannot be reached" in data.notes[0]
    assert "Going on without owner/absent" in data.notes[1]
    assert "\n".join(data.notes) in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "cleaning.json").read_text())["notes"] == data.notes


def test_a_run_begun_without_the_hub_continues_without_it_and_does_not_ask_again(
    prepared: Prepare, tmp_path: Path, no_hub: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    local = CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", PAIRS)))
    before = prepared(OPTIONAL, local)
    monkeypatch.setattr(hub, "unreachable", lambda path: None)  # the hub is back
    monkeypatch.setattr(hub, "load", lambda *args, **kwargs: pytest.fail("the hub was asked"))
    after = prepared(OPTIONAL, local)
    assert after.fingerprint == before.fingerprint
    assert any("begun without owner/absent" in note for note in after.notes)
    assert no_hub == ["owner/absent"]


def test_a_run_begun_with_the_hub_continues_without_asking_it(
    prepared: Prepare, tmp_path: Path, no_hub: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    rows = datasets.Dataset.from_list([translation(*pair) for pair in PAIRS])
    rows.save_to_disk(str(tmp_path / "stored"))
    stored = datasets.load_from_disk(str(tmp_path / "stored"))
    local = CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", [("第一。", "One."), ("第二。", "Two.")])))
    with monkeypatch.context() as patch:
        patch.setattr(hub, "unreachable", lambda path: None)
        patch.setattr(hub, "load", lambda *args, **kwargs: {"train": stored})
        with_hub = prepared(OPTIONAL, local)
    assert with_hub.notes == []
    again = prepared(OPTIONAL, local)
    assert again.fingerprint == with_hub.fingerprint
    assert no_hub == []
    without = prepared(OPTIONAL, local, run="another")
    assert without.fingerprint != with_hub.fingerprint
    assert no_hub == ["owner/absent"]


def test_a_corpus_that_is_not_optional_must_be_there(prepared: Prepare, no_hub: list[str]) -> None:
    with pytest.raises(UserError, match="cannot be reached for owner/absent"):
        prepared(CorpusConfig(path="owner/absent"))


def test_only_optional_corpora_and_none_of_them_there_is_refused(
    prepared: Prepare, no_hub: list[str]
) -> None:
    with pytest.raises(UserError, match=r"none of data\.corpora"):
        prepared(OPTIONAL)


def test_a_failed_preparation_leaves_nothing_that_looks_finished(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", PAIRS)))
    with monkeypatch.context() as patch:
        patch.setattr(
            prepare, "write_ids", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("disk full"))
        )
        with pytest.raises(UserError, match="disk full"):
            prepared(corpus)
    assert not list((tmp_path / "cache").glob("ids-*"))
    assert prepared(corpus).train_size > 0


def test_the_clean_texts_of_the_training_split_are_on_disk(prepared: Prepare, tmp_path: Path) -> None:
    data = prepared(
        CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", [("\ufeff好。\r", "Good.\x00"), *PAIRS])))
    )
    assert Texts(data.prepared.texts / "train.src")[0] == "好。"
    assert Texts(data.prepared.texts / "train.tgt")[0] == "Good."


@pytest.mark.parametrize("kind", ["tsv", "aligned", "folder"])
def test_a_second_start_opens_no_file_of_the_corpus_and_reads_no_text(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = tmp_path / "corpus"
    if kind == "tsv":
        corpus = CorpusConfig(path=str(write_tsv(place / "a.tsv", PAIRS)))
    elif kind == "folder":
        write_folder(place, {"train": [translation(*pair) for pair in PAIRS]})
        corpus = CorpusConfig(path=str(place))
    else:
        place.mkdir()
        for n, side in enumerate(("src", "tgt")):
            (place / side).write_text("".join(f"{pair[n]}\n" for pair in PAIRS), encoding="utf-8")
        corpus = CorpusConfig(src_path=str(place / "src"), tgt_path=str(place / "tgt"))
    monkeypatch.setattr(digests, "SETTLED", -1.0)  # as if the files had been written long ago
    first = prepared(corpus)
    opened: list[str] = []
    watch(opened)
    again = prepared(corpus, run="another")
    next(iter(again.train_dataloader()))
    watch(None)
    assert again.fingerprint == first.fingerprint
    assert any(name.endswith("train.src.values") and "ids-" in name for name in opened)  # the ids are mapped
    texts = {name for name in opened if "/texts-" in name and "train" in name}
    assert not texts
    assert not [name for name in opened if name.startswith(str(place))]

"""Preparation: the cache, the fingerprint, optional corpora, splits."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.config import CorpusConfig, TokenizerConfig
from dragoman.data.cleaning import LEAK
from dragoman.data.text import Pair
from dragoman.errors import UserError


def folders(cache: str) -> set[str]:
    return {path.name for path in Path(cache).iterdir() if path.is_dir()}


@pytest.fixture
def own_cache(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


def test_a_second_run_finds_the_first_runs_folders(
    small: Callable, own_cache: str, capsys: pytest.CaptureFixture
) -> None:
    first = small(cache=own_cache)
    before = folders(own_cache)
    assert len(before) == 1
    assert "Cleaning" in capsys.readouterr().out
    second = small(cache=own_cache, run="other", seed=2)
    assert folders(own_cache) == before
    assert second.fingerprint == first.fingerprint
    assert "Cleaning" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "n_folders"),
    [
        ({"max_tokens": 500, "lowercase": 0.5, "tokenizer": TokenizerConfig(vocab_size=340, sampling=0.1)}, 1),
        ({"max_length": 20}, 2),
        ({"tokenizer": TokenizerConfig(vocab_size=330)}, 2),
        ({"leak": "sentence", "validation_size": 3}, 2),
    ],
)
def test_some_settings_repeat_the_preparation(small: Callable, own_cache: str, change: dict, n_folders: int) -> None:
    small(cache=own_cache)
    small(**{"cache": own_cache} | change)
    assert len(folders(own_cache)) == n_folders


def test_a_changed_file_is_prepared_again(prepare: Callable, write: Callable, pairs: list) -> None:
    first = prepare(write("a.tsv", pairs))
    second = prepare(write("a.tsv", pairs[:500]))
    assert second.train_size < first.train_size
    assert second.fingerprint != first.fingerprint


def test_the_fingerprint_is_that_of_the_content(prepare: Callable, write: Callable, pairs: list) -> None:
    rows = [{"zh": zh, "en": en} for zh, en in pairs]
    tsv, jsonl = prepare(write("a.tsv", pairs)), prepare(write("b/a.jsonl.gz", rows))
    assert tsv.fingerprint == jsonl.fingerprint
    repeated = prepare(CorpusConfig(path=write("a.tsv", pairs), repeat=2))
    assert repeated.fingerprint != tsv.fingerprint


def test_a_failed_step_leaves_no_folder(small: Callable, own_cache: str) -> None:
    with pytest.raises(UserError, match="no training pair is left"):
        small(cache=own_cache, src="en", tgt="zh")
    assert folders(own_cache) == set()


def test_pairs_carry_the_name_of_their_corpus(prepare: Callable, write: Callable, pairs: list) -> None:
    composed = write("composed.jsonl", [{"zh": "你", "en": "you", "references": ["you", "thou"]}])
    data = prepare(
        write("train.tsv", pairs),
        CorpusConfig(path=write("written.tsv", pairs[:4]), split="validation"),
        CorpusConfig(path=write("zh_en.tsv", pairs[:1]), split="validation"),  # the name of the direction
        CorpusConfig(path=composed, split="validation"),
    )
    names = [pair.corpus.rpartition("-")[2] for pair in data.validation]
    assert names == ["written"] * 4 + ["zh_en.tsv", "composed"]
    assert data.validation[5] == Pair("你", "you", ("you", "thou"), "composed")
    assert {pair.corpus for pair in data.test} == {"train"}
    assert data.notes == []


def test_a_corpus_without_validation_pairs_beside_one_that_has_some_is_named(
    prepare: Callable, write: Callable, pairs: list
) -> None:
    for split, rows in {"train": pairs[:300], "validation": pairs[300:310]}.items():
        write(f"old/{split}.tsv", rows)
    folder = str(Path(write("old/test.tsv", pairs[310:320])).parent)
    (note,) = prepare(folder, write("my.tsv", pairs[320:])).notes
    assert "my.tsv: no validation pairs" in note


def test_given_splits_leave_train(
    prepare: Callable, write: Callable, pairs: list, seen: Callable, report: Callable
) -> None:
    test = [{"zh": zh, "en": "Other.", "references": ["Other.", en]} for zh, en in pairs[:5]]
    entries = (CorpusConfig(path=write("a.tsv", pairs)), CorpusConfig(path=write("b.jsonl", test), split="test"))
    data = prepare(*entries, validation_size=0)
    assert not set(seen(data)) & set(pairs[:5])
    assert report() == {"kept": len(data.train_ids) // 2, LEAK: 5}
    assert len(data.validation) == 0
    shared = CorpusConfig(path=write("c.tsv", [(pairs[9][0], "Other.")]), split="test")
    prepare(entries[0], shared, validation_size=0, leak="sentence")
    assert report()[LEAK] >= 1


def test_missing_splits_are_taken_from_train(small: Callable, seen: Callable, pairs: list) -> None:
    data = small(validation_size=4)
    assert len(data.validation) == 4
    held_out = {(pair.src, pair.tgt) for pair in [*data.validation, *data.test]}
    assert held_out < set(pairs)
    assert not held_out & set(seen(data))
    assert all(pair.references == (pair.tgt,) for pair in data.validation)


def test_separate_vocabularies_are_two_tokenizers(small: Callable) -> None:
    data = small(tokenizer=TokenizerConfig(vocab_size=330, vocabulary="separate"))
    assert data.src_tokenizer.sha256 != data.tgt_tokenizer.sha256
    assert {data.src_tokenizer.path.name, data.tgt_tokenizer.path.name} == {"src.model", "tgt.model"}


def test_a_folder_with_splits_of_its_own_is_no_split(prepare: Callable, write: Callable, pairs: list) -> None:
    folder = CorpusConfig(path=str(Path(write("a.tsv", pairs)).parent), split="validation")
    with pytest.raises(UserError, match="split=validation is for one file"):
        prepare(folder)


def test_an_optional_corpus_may_be_missing(small: Callable, write: Callable, pairs: list) -> None:
    path = write("a.tsv", pairs)
    gone = CorpusConfig(path="gone.tsv", optional=True)
    data = small(gone, path)
    assert "gone.tsv" in data.notes[0]
    assert "trains without it" in data.notes[0]
    with pytest.raises(UserError, match=r"no 'gone\.tsv'"):
        small(CorpusConfig(path="gone.tsv"), path)
    with pytest.raises(UserError, match=r"data\.corpora: none available.*data\.corpora='\[\{path"):
        small(gone, run="other")


def test_a_run_resumes_with_the_corpora_it_was_begun_with(
    small: Callable, write: Callable, pairs: list, tmp_path: Path
) -> None:
    path, late = write("a.tsv", pairs), CorpusConfig(path=str(tmp_path / "late.tsv"), optional=True)
    without = small(late, path)
    small(late, path, run="stopped")  # before it was trained
    (tmp_path / "run" / "metrics.json").touch()
    write("late.tsv", [("你好", "hello")])
    assert small(late, path).fingerprint == without.fingerprint
    assert "missing when this run began" in small(late, path).notes[0]
    assert small(late, path, run="stopped").fingerprint != without.fingerprint
    (tmp_path / "stopped" / "metrics.json").touch()
    (tmp_path / "late.tsv").unlink()
    with pytest.raises(UserError, match=r"no '.*late\.tsv'"):
        small(late, path, run="stopped")


def test_an_unreachable_hub_is_noted(
    small: Callable, write: Callable, pairs: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(path: str, name: str | None) -> None:
        raise ConnectionError("no answer")

    monkeypatch.setattr("datasets.config.HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.load_dataset", load)
    corpus = CorpusConfig(path="owner/corpus", name="en-zh", optional=True)
    data = small(corpus, write("a.tsv", pairs))
    assert data.notes[0].startswith("owner/corpus (en-zh): the hub http://127.0.0.1:9 cannot be reached")
    assert "searched" not in data.notes[0]

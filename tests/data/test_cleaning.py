"""Cleaning in the whole preparation: one bad pair among good ones, and splits."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from dragoman.config import DataConfig, TokenizerConfig
from dragoman.data import cleaning
from dragoman.data.cleaning import COPY, DAMAGED, DUPLICATE, EMPTY, LEAK, SHARED, TOO_LONG, UNEQUAL, WRONG_SCRIPT
from dragoman.data.readers import Rows
from dragoman.errors import UserError

SCHOOL = ("我去学校。", "I go to school.")


def clean(*pairs: tuple[str, str], split: str = "train", **options: object) -> tuple[list, Counter]:
    cleaner = cleaning.Cleaner(DataConfig(**options))
    kept = cleaner.clean(Rows([src for src, _ in pairs], [tgt for _, tgt in pairs]), split)
    return [(pair.src, pair.tgt) for pair in kept], cleaner.report[split]


def test_a_pair_is_repaired_and_counted() -> None:
    for pair, result in (
        (("我去\x00学校。", "I go\r to\u2028school."), SCHOOL),
        (("我去学校。\u200b", "\ufeffI go to school."), SCHOOL),
        (("我&amp;你&#65281;", "you &lt; I"), ("我&你！", "you < I")),
        (("网址?a=1&copy=2", "AT&T &unknown; R&D;"), ("网址?a=1&copy=2", "AT&T &unknown; R&D;")),
        (("我去𠮷野家。", "I go 🦖."), ("我去𠮷野家。", "I go 🦖.")),
    ):
        pairs, report = clean(pair)
        assert pairs == [result]
        assert report["repaired"] == (pair != result)


def test_a_bad_pair_is_dropped_and_counted() -> None:
    for pair, reason, n_in_test in (
        (("", "I go."), EMPTY, 0),
        (("我" * 10_001, "I"), TOO_LONG, 0),
        (("I go.", "我去。"), WRONG_SCRIPT, 1),
        (("我去。", "I 去."), WRONG_SCRIPT, 1),
        (("我去。", "I カ go."), WRONG_SCRIPT, 1),
        (("我去学校。", "I go \ufffd."), DAMAGED, 1),
    ):
        pairs, report = clean(pair, SCHOOL)
        assert pairs == [SCHOOL]
        assert report == Counter({"read": 2, reason: 1})
        assert len(clean(pair, split="test")[0]) == n_in_test


def test_copies_are_dropped_where_data_says_so() -> None:
    pairs = [("Taxi", "Taxi"), ("Haus", "house")]
    assert clean(*pairs, src="de")[0] == pairs[1:]
    assert clean(*pairs, src="de")[1] == Counter({"read": 2, COPY: 1})
    assert clean(*pairs, src="de", drop_copies=False)[0] == pairs


def test_chinese_is_converted_to_one_script() -> None:
    pytest.importorskip("opencc")
    pairs, report = clean(("這個國家", "這 country"), script="hans", src="zh", tgt="ja")
    assert pairs == [("这个国家", "這 country")]
    assert report["repaired"] == 1


def test_references_of_the_other_side_are_left_out() -> None:
    cleaner = cleaning.Cleaner(DataConfig())
    rows = Rows(["你", "我"], ["you", "I"], [["thou", "you", "thou", ""], ["我"]])
    assert [pair.references for pair in cleaner.clean(rows, "test")] == [("you", "thou"), ("I",)]


def test_the_table_has_a_line_for_each_split() -> None:
    train = Counter({"read": 1200, "kept": 1100, "repaired": 7, EMPTY: 100})
    splits = {"train": train, "validation": Counter(), "test": Counter({"read": 3, "kept": 3})}
    lines = cleaning.summary(splits).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["train", "1,200", "7", "1,100", "empty", "100"]


def of(*pairs: str) -> np.ndarray:
    """Hashes of pairs written "ab": sentence a and its translation b."""
    return cleaning.hashes([(pair[0], pair[1]) for pair in pairs])


def assign(train: np.ndarray, held_out: np.ndarray, sizes: dict, leak: str = "pair") -> tuple[list, dict, dict]:
    counts = Counter()
    keep, splits = cleaning.assign_splits(train, held_out, sizes, leak, counts, np.zeros(train.shape[1], bool))
    return np.flatnonzero(keep).tolist(), {split: chosen.tolist() for split, chosen in splits.items()}, +counts


def test_duplicates_and_leaks_leave_train() -> None:
    train, held_out = of("ab", "ab", "ba", "cd", "ce"), of("cd")
    assert assign(train, held_out, {}) == ([0, 2, 4], {}, {DUPLICATE: 1, LEAK: 1})
    assert assign(train, held_out, {}, "sentence")[0] == [0, 2]


def test_splits_from_train_share_no_sentence_with_it() -> None:
    names = [chr(0x4E00 + i) for i in range(400)]
    train = of(*(names[i % 150] + names[i] for i in range(400)))
    rows, splits, dropped = assign(train, of(), {"validation": 50, "test": 3})
    assert {split: len(chosen) for split, chosen in splits.items()} == {"validation": 40, "test": 3}
    held_out = train[:, splits["validation"] + splits["test"]]
    assert not cleaning.leaks(train[:, rows], held_out, sentence=True).any()
    assert not cleaning.leaks(train[:, splits["test"]], train[:, splits["validation"]], sentence=True).any()
    assert 0 < dropped[SHARED] <= 43
    assert len(rows) + 43 + dropped[SHARED] == 400


def test_a_split_from_train_is_two_percent_or_a_hundred_pairs() -> None:
    for n, size, taken in ((2_000, 1000, 100), (6_000, 1000, 120), (6_000, 50, 50)):
        _, splits, _ = assign(of(*(chr(0x4E00 + i) * 2 for i in range(n))), of(), {"test": size})
        assert len(splits["test"]) == taken


def test_splits_from_train_do_not_depend_on_its_order() -> None:
    names = [chr(0x4E00 + i) * 2 for i in range(200)]
    _, splits, _ = assign(of(*names), of(), {"test": 4})
    _, reverse, _ = assign(of(*names[::-1]), of(), {"test": 4})
    assert sorted(199 - i for i in reverse["test"]) == splits["test"]


def test_pairs_too_long_or_unequal_are_dropped(
    prepare: Callable, write: Callable, pairs: list, report: Callable
) -> None:
    others = [("书", "It is a good book."), ("我喜欢书。" * 30, "I like the book. " * 30), ("书", "the book " * 15)]
    prepare(write("a.tsv", [*pairs, *others]), max_length=60, validation_size=0, test_size=0)
    assert report() == {"kept": len(pairs) + 1, TOO_LONG: 1, UNEQUAL: 1}


def test_a_corpus_without_good_pairs_fails(prepare: Callable, write: Callable) -> None:
    options = {"validation_size": 0, "test_size": 0, "tokenizer": TokenizerConfig(vocab_size=300)}
    for content, message in (
        ([("I go", "我去")] * 3, "no training pair is left.*wrong script 3.*name them all in a first line"),
        ([("", "I go")] * 3, r"no training pair is left after cleaning \(empty 3\)"),
        (b"", r"no training pair is left after cleaning \(no pair was read\)"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(write("a.tsv", content), **options)
    assert prepare(write("a.tsv", [("我去", "I go")] * 5), **options).train_size == 1

"""Arithmetic on hashes: duplicates, leaks, and splits that are cut."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.splits import Hashes, cut, first_occurrences, hashes

pairs = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("stuvwxyz")), max_size=60)


def hashed(texts: list[tuple[str, str]]) -> Hashes:
    return Hashes(hashes([src.encode() for src, _ in texts]), hashes([tgt.encode() for _, tgt in texts]))


def test_hashes_are_the_same_in_every_run() -> None:
    assert hashes([b"", "好".encode()]).tolist() == hashes([b"", "好".encode()]).tolist()
    assert len({*hashes([b"", b"a", b"b", b"ab"]).tolist()}) == 4


@given(pairs)
def test_pairs_have_equal_hashes_exactly_where_both_sides_are_equal(texts: list[tuple[str, str]]) -> None:
    found = hashed(texts).pairs().tolist()
    assert len(set(found)) == len(set(texts))
    assert dict(zip(texts, found, strict=True)) == dict(zip(texts, found, strict=True))


def test_a_pair_and_its_reverse_differ() -> None:
    one, two = hashed([("a", "b"), ("b", "a")]).pairs()
    assert one != two


@given(pairs)
def test_first_occurrences_keep_one_of_each(texts: list[tuple[str, str]]) -> None:
    mask = first_occurrences(hashed(texts).pairs())
    assert [pair for pair, first in zip(texts, mask, strict=True) if first] == list(dict.fromkeys(texts))


@given(pairs, pairs)
def test_leaks_are_those_that_share_a_pair_or_a_sentence(
    train: list[tuple[str, str]], held: list[tuple[str, str]]
) -> None:
    by_pair = hashed(train).leaks(hashed(held), sentence=False)
    assert by_pair.tolist() == [pair in held for pair in train]
    by_sentence = hashed(train).leaks(hashed(held), sentence=True)
    src, tgt = {a for a, _ in held}, {b for _, b in held}
    assert by_sentence.tolist() == [a in src or b in tgt for a, b in train]


def test_a_cut_depends_on_the_pairs_and_not_on_their_order() -> None:
    texts = [(f"s{i}", f"t{i}") for i in range(3000)]
    chosen = {texts[row] for row in cut(hashed(texts), np.arange(3000), 40)}
    backwards = texts[::-1]
    assert {backwards[row] for row in cut(hashed(backwards), np.arange(3000), 40)} == chosen
    assert len(chosen) == 40


def test_a_cut_prefers_pairs_whose_sentences_occur_nowhere_else() -> None:
    common = [("谢谢", f"t{i}") for i in range(1000)]
    unique = [(f"s{i}", f"u{i}") for i in range(1000)]
    rows = cut(hashed(common + unique), np.arange(2000), 40)
    assert (rows >= 1000).all()


def test_a_cut_takes_two_percent_of_a_small_corpus_and_at_least_one_pair() -> None:
    texts = hashed([(f"s{i}", f"t{i}") for i in range(500)])
    assert len(cut(texts, np.arange(500), 1000)) == 10
    assert len(cut(texts, np.arange(3), 1000)) == 1

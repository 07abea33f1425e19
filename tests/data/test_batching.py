"""Plans of batches: nothing lost, within the budget, the same again for the same seed."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data.batching import Planner, first_fit, sorted_rows

lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=200)


def sides(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    src, tgt = zip(*pairs, strict=True)
    return np.array(src, np.int32), np.array(tgt, np.int32)


def corpus(n: int) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(0)
    src = chance.gamma(3, 4, n).astype(np.int32) + 2
    return src, np.maximum(2, src + chance.integers(-4, 6, n)).astype(np.int32)


@given(lengths, st.integers(0, 3))
def test_every_row_is_in_exactly_one_batch_of_an_epoch(pairs: list[tuple[int, int]], epoch: int) -> None:
    plan = Planner(*sides(pairs), max_tokens=80, seed=1)
    assert sorted(np.concatenate(plan.epoch(epoch)).tolist()) == list(range(len(pairs)))


@given(lengths)
def test_no_batch_costs_more_than_the_budget(pairs: list[tuple[int, int]]) -> None:
    src, tgt = sides(pairs)
    for rows in Planner(src, tgt, max_tokens=80, seed=1).epoch(0):
        assert len(rows) * max(src[rows].max(), tgt[rows].max()) <= 80


def test_a_row_longer_than_the_budget_is_a_batch_of_its_own() -> None:
    src, tgt = sides([(3, 3), (500, 2), (3, 3)])
    batches = Planner(src, tgt, max_tokens=80, seed=1).epoch(0)
    assert sorted(len(rows) for rows in batches) == [1, 2]


def test_equal_seeds_give_equal_plans_and_other_seeds_or_epochs_others() -> None:
    src, tgt = corpus(3000)

    def plan(seed: int, epoch: int) -> list[list[int]]:
        return [rows.tolist() for rows in Planner(src, tgt, 400, seed).epoch(epoch)]

    assert plan(1, 5) == plan(1, 5)
    assert plan(1, 5) != plan(2, 5)
    assert plan(1, 5) != plan(1, 6)


def test_batches_of_two_epochs_differ_in_composition_and_not_only_in_order() -> None:
    plan = Planner(*corpus(3000), max_tokens=400, seed=1)
    first, second = ({tuple(sorted(rows.tolist())) for rows in plan.epoch(epoch)} for epoch in (1, 2))
    assert len(first & second) < 0.2 * len(first)  # those of rare long sentences can hardly change


def test_every_epoch_has_as_many_batches_as_promised() -> None:
    plan = Planner(*corpus(3000), max_tokens=400, seed=1)
    assert {len(plan.epoch(epoch)) for epoch in range(4)} == {plan.batches_per_epoch}


@given(lengths, st.integers(2, 5))
@settings(max_examples=30)
def test_ranks_make_equally_many_batches_and_together_see_every_row(
    pairs: list[tuple[int, int]], world_size: int
) -> None:
    plans = [Planner(*sides(pairs), 80, 1, rank, world_size) for rank in range(world_size)]
    epochs = [plan.epoch(1) for plan in plans]
    assert {len(batches) for batches in epochs} == {plans[0].batches_per_epoch}
    n_batches = len(Planner(*sides(pairs), 80, 1).epoch(1))
    seen = [rows.tolist() for batches in epochs for rows in batches]
    assert set(itertools.chain(*seen)) == set(range(len(pairs)))
    assert 0 <= len(seen) - n_batches < world_size  # no more than the tail is given out twice


def test_training_begins_with_the_longest_sentences() -> None:
    src, tgt = corpus(3000)
    longest = np.maximum(src, tgt)
    for world_size in (1, 3):
        for rank in range(world_size):
            first = Planner(src, tgt, 800, 1, rank, world_size).epoch(0)[0]
            assert longest[first].max() >= np.quantile(longest, 0.98)
    assert longest[Planner(src, tgt, 800, 1).epoch(0)[0]].max() == longest.max()


def test_padding_stays_small_where_lengths_correlate() -> None:
    plan = Planner(*corpus(26_000), max_tokens=4096, seed=1)
    assert plan.padding_share < 0.08


def test_the_padding_share_is_that_of_the_batches() -> None:
    src, tgt = corpus(500)
    plan = Planner(src, tgt, 400, 1)
    padded = sum(len(rows) * int(src[rows].max() + tgt[rows].max()) for rows in plan.epoch(3))
    assert plan.padding_share == pytest.approx(1 - int(src.sum() + tgt.sum()) / padded)


def test_a_million_pairs_are_planned_within_seconds() -> None:
    src, tgt = corpus(1_350_000)
    start = time.process_time()
    Planner(src, tgt, 4096, 1).epoch(1)
    assert time.process_time() - start < 4  # about 1 s; the slack is for a busy machine


@given(lengths, st.integers(0, 3), st.integers(1, 3))
def test_the_shapes_told_are_those_of_every_epoch(
    pairs: list[tuple[int, int]], epoch: int, world_size: int
) -> None:
    src, tgt = sides(pairs)
    told = Planner(src, tgt, 80, 1, world_size=world_size).shapes.tolist()
    batches = Planner(src, tgt, 80, seed=1).epoch(epoch)
    assert sorted(told) == sorted([len(b), src[b].max(), tgt[b].max(), tgt[b].sum()] for b in batches)
    longest = [max(src_width, tgt_width) for _, src_width, tgt_width, _ in told]
    assert longest == sorted(longest, reverse=True)


def loaded(side: np.ndarray, batch: np.ndarray) -> list[int]:
    """Tokens in each row of a packed batch."""
    chosen, rows = batch
    return np.bincount(rows, side[chosen]).astype(int).tolist()


@given(lengths, st.integers(0, 3), st.sampled_from([40, 80, 200]), st.integers(1, 3))
def test_packed_every_pair_is_in_one_batch_and_no_row_or_batch_exceeds_its_budget(
    pairs: list[tuple[int, int]], epoch: int, max_tokens: int, world_size: int
) -> None:
    src, tgt = sides(pairs)
    plan = Planner(src, tgt, max_tokens, seed=1, row_tokens=40)
    batches = plan.epoch(epoch)
    assert sorted(np.concatenate([chosen for chosen, _ in batches]).tolist()) == list(range(len(pairs)))
    for batch in batches:
        assert (np.diff(batch[1], prepend=0) >= 0).all()
        assert set(batch[1]) == set(range(batch[1].max() + 1))
        assert max(loaded(src, batch) + loaded(tgt, batch)) <= 40
        assert (batch[1].max() + 1) * 40 <= max_tokens
    ranks = [Planner(src, tgt, max_tokens, 1, r, world_size, row_tokens=40) for r in range(world_size)]
    seen = [chosen.tolist() for rank in ranks for chosen, _ in rank.epoch(epoch)]
    assert set(itertools.chain(*seen)) == set(range(len(pairs)))
    assert {len(rank.epoch(epoch)) for rank in ranks} == {ranks[0].batches_per_epoch}


@given(lengths, st.integers(0, 3))
def test_the_shapes_of_packed_batches_are_those_of_every_epoch(
    pairs: list[tuple[int, int]], epoch: int
) -> None:
    src, tgt = sides(pairs)
    plan = Planner(src, tgt, 120, seed=1, row_tokens=40)
    found = []
    for batch in plan.epoch(epoch):
        n_rows = batch[1].max() + 1
        found.append([n_rows, max(loaded(src, batch)), max(loaded(tgt, batch)), tgt[batch[0]].sum()])
    assert sorted(plan.shapes.tolist()) == sorted(found)
    positions = [rows * (src_width + tgt_width) for rows, src_width, tgt_width, _ in plan.shapes.tolist()]
    assert positions == sorted(positions, reverse=True)
    assert plan.padding_share == pytest.approx(1 - (src.sum() + tgt.sum()) / sum(positions))


@given(lengths)
def test_a_single_row_has_no_padding_and_its_shape_is_pairs_of_mean_length(
    pairs: list[tuple[int, int]],
) -> None:
    src, tgt = sides(pairs)
    plan = Planner(src, tgt, 120, seed=1, row_tokens=120)
    assert plan.padding_share == 0
    for (n, src_mean, tgt_mean, tokens), (chosen, rows) in zip(
        sorted(plan.shapes.tolist()),
        sorted(plan.epoch(1), key=lambda b: sorted_shape(src, tgt, b)),
        strict=True,
    ):
        assert not rows.any()
        assert [n, tokens] == [len(chosen), tgt[chosen].sum()]
        assert [n * src_mean, n * tgt_mean] == pytest.approx([src[chosen].sum(), tgt[chosen].sum()])


def sorted_shape(src: np.ndarray, tgt: np.ndarray, batch: np.ndarray) -> list[float]:
    chosen = batch[0]
    return [len(chosen), src[chosen].sum() / len(chosen), tgt[chosen].sum() / len(chosen), tgt[chosen].sum()]


@given(lengths, st.integers(40, 100))
def test_bins_are_those_of_first_fit_one_pair_at_a_time(pairs: list[tuple[int, int]], capacity: int) -> None:
    src, tgt = sides(pairs)
    order = sorted_rows(src, tgt)
    free: list[list[int]] = []
    expected = []
    for i in order.tolist():
        size = (int(src[i]), int(tgt[i]))
        fits = (n for n, room in enumerate(free) if room[0] >= size[0] and room[1] >= size[1])
        number = next(fits, len(free))
        if number == len(free):
            free.append([capacity, capacity])
        free[number] = [free[number][0] - size[0], free[number][1] - size[1]]
        expected.append(number)
    assert first_fit(src[order], tgt[order], capacity).tolist() == expected


def test_a_pair_longer_than_a_row_has_one_of_its_own() -> None:
    src, tgt = sides([(3, 3), (500, 2), (3, 3)])
    batches = Planner(src, tgt, max_tokens=80, seed=1, row_tokens=80).epoch(0)
    assert sorted(len(rows) for _, rows in batches) == [1, 2]


def test_packed_plans_differ_between_epochs_and_seeds_and_repeat_themselves() -> None:
    src, tgt = corpus(3000)

    def plan(seed: int, epoch: int) -> list[list[list[int]]]:
        return [batch.tolist() for batch in Planner(src, tgt, 400, seed, row_tokens=200).epoch(epoch)]

    assert plan(1, 5) == plan(1, 5)
    assert plan(1, 5) != plan(2, 5)
    first, second = ({tuple(sorted(chosen)) for chosen, _ in plan(1, epoch)} for epoch in (1, 2))
    assert len(first & second) < 0.2 * len(first)


@pytest.mark.parametrize("row_tokens", [256, 4096])
def test_packing_leaves_less_padding_where_a_corpus_is_small(row_tokens: int) -> None:
    src, tgt = corpus(3000)
    padded, packed = (Planner(src, tgt, 4096, 1, row_tokens=n) for n in (0, row_tokens))
    assert packed.padding_share < padded.padding_share / 2
    assert packed.batches_per_epoch <= padded.batches_per_epoch

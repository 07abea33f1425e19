"""Batch plans and length batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.collate import BatchPlan, collate, length_batches

BUDGET = 400


@pytest.fixture(scope="module")
def lengths() -> tuple[np.ndarray, np.ndarray]:
    src = np.random.default_rng(1).integers(2, 60, 1000).astype(np.int32)
    return src, np.maximum(2, src + np.random.default_rng(2).integers(-9, 10, 1000)).astype(np.int32)


@given(st.lists(st.integers(0, 50)), st.integers(1, 100), st.integers(1, 5))
def test_length_batches_hold_all_and_keep_the_budget(lengths: list[int], budget: int, beam: int) -> None:
    batches = length_batches(lengths, budget, beam)
    order = [i for batch in batches for i in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[i] for i in order] == sorted(lengths, reverse=True)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * beam * lengths[batch[0]] <= budget


def test_length_batches_are_as_large_as_the_budget_allows() -> None:
    assert length_batches([3, 9, 3, 4], 9) == [[1], [3, 0], [2]]
    assert length_batches([2, 2, 2, 2], 8, beam=2) == [[0, 1], [2, 3]]


def test_an_epoch_holds_each_pair_once_within_budget(lengths: tuple) -> None:
    src, tgt = lengths
    for epoch in (0, 1):
        batches = BatchPlan((src, tgt), BUDGET, seed=1).epoch(epoch)
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(src)))
        assert all(len(batch) * max(src[batch].max(), tgt[batch].max()) <= BUDGET for batch in batches)


def test_epochs_differ_and_depend_on_the_seed_alone(lengths: tuple) -> None:
    def epoch(number: int, seed: int = 1) -> list[list[int]]:
        return [batch.tolist() for batch in BatchPlan(lengths, BUDGET, seed).epoch(number)]

    assert epoch(3) == epoch(3)
    assert epoch(3) != epoch(4)
    assert epoch(3) != epoch(3, seed=2)


def test_the_first_epoch_begins_with_the_longest(lengths: tuple) -> None:
    src, tgt = lengths
    longest = [max(src[batch].max(), tgt[batch].max()) for batch in BatchPlan((src, tgt), BUDGET, 1).epoch(0)]
    assert longest[0] == max(src.max(), tgt.max())
    assert longest[:8] == sorted(longest, reverse=True)[:8]


def test_ranks_share_an_epoch(lengths: tuple) -> None:
    world_size = 7
    alone = BatchPlan(lengths, BUDGET, 1)
    plans = [BatchPlan(lengths, BUDGET, 1, rank, world_size) for rank in range(world_size)]
    batches = [tuple(batch.tolist()) for plan in plans for batch in plan.epoch(1)]
    assert {len(plan.epoch(1)) for plan in plans} == {-(-alone.batches_per_epoch // world_size)}
    assert set(batches) == {tuple(batch.tolist()) for batch in alone.epoch(1)}
    assert len(batches) - len(set(batches)) < world_size


def test_a_pair_beyond_the_budget_is_a_batch_alone() -> None:
    lengths = np.array([1000, 3, 3], np.int32)
    assert sorted(map(len, BatchPlan((lengths, lengths), 10, 1).epoch(0))) == [1, 2]


def test_few_shapes_are_planned_and_collated(lengths: tuple) -> None:
    exact, plan = (BatchPlan(lengths, BUDGET, 1, max_bucket=few) for few in (0, 99))
    assert len(np.unique(plan.shapes[:, :3], axis=0)) < len(np.unique(exact.shapes[:, :3], axis=0)) / 2
    assert all(n % 8 == 0 or n < 8 for n in plan.shapes[:-1, 0])
    assert sorted(np.concatenate(plan.epoch(1)).tolist()) == list(range(len(lengths[0])))
    for pairs, (n_pairs, *widths, _) in zip(plan.epoch(0)[:8], plan.shapes.tolist(), strict=False):
        ids = ([[5] * (n - 1) for n in side[pairs]] for side in lengths)
        batch = collate(*ids, max_bucket=99)
        assert [len(batch.src), batch.src.size(1), batch.tgt_in.size(1)] == [n_pairs, *widths]
        assert batch.src.numel() <= BUDGET

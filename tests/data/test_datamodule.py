"""The stream of batches: equal from any point and for any number of workers."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dragoman.config import CorpusConfig, DataConfig, TokenizerConfig
from dragoman.data.collate import Batch
from dragoman.data.datamodule import TranslationData
from dragoman.errors import UserError

BOTH = ["zh_en", "en_zh"]


def equal(some: list[Batch], others: list[Batch]) -> bool:
    return len(some) == len(others) and all(
        torch.equal(a.src, b.src) and torch.equal(a.tgt_out, b.tgt_out) for a, b in zip(some, others, strict=True)
    )


def sampling(p: float, vocab_size: int = 340) -> TokenizerConfig:
    return TokenizerConfig(vocab_size=vocab_size, sampling=p)


@pytest.mark.parametrize("options", [{}, {"directions": BOTH, "tokenizer": sampling(0.2, 342)}])
def test_the_stream_resumes_anywhere(small: Callable, first: Callable, options: dict) -> None:
    data = small(**options)
    n = data.plan.batches_per_epoch
    batches = first(data, n + 5)
    for consumed in (1, n, n + 3):
        resumed = small(**options)
        resumed.load_state_dict(data.state_dict() | {"consumed": consumed})
        assert equal(first(resumed, len(batches) - consumed), batches[consumed:])


@pytest.mark.slow
@pytest.mark.parametrize("p", [0.0, 0.2])
def test_workers_do_not_change_the_batches(small: Callable, first: Callable, p: float) -> None:
    assert equal(first(small(tokenizer=sampling(p)), 12), first(small(tokenizer=sampling(p), workers=2), 12))


def test_an_epoch_repeats_pairs_as_often_as_configured(
    prepare: Callable, write: Callable, pairs: list, seen: Callable
) -> None:
    data = prepare(write("b.tsv", pairs[:200]), CorpusConfig(path=write("c.tsv", pairs[200:]), repeat=3))
    data.consumed = data.plan.batches_per_epoch
    counts = Counter(seen(data))
    assert {counts[pair] for pair in pairs[:200]} <= {0, 1}
    assert {counts[pair] for pair in pairs[200:]} <= {0, 3}
    assert counts.total() == data.train_size


def test_ranks_share_an_epoch(small: Callable, seen: Callable) -> None:
    alone = small()
    union: Counter = Counter()
    for rank in range(3):
        data = small()
        data.trainer = SimpleNamespace(global_rank=rank, world_size=3)
        assert data.plan.batches_per_epoch == -(-alone.plan.batches_per_epoch // 3)
        union.update(seen(data))
    assert set(union) == set(seen(alone))


def rows_of(batches: list[Batch]) -> set[tuple]:
    return {
        (tuple(filter(None, src)), tuple(filter(None, tgt)))
        for batch in batches
        for src, tgt in zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True)
    }


def test_samples_depend_on_seed_epoch_and_pair_alone(small: Callable, first: Callable) -> None:
    def epoch(number: int = 0, **options: object) -> set[tuple]:
        data = small(tokenizer=sampling(0.4), **options)
        n = data.plan.batches_per_epoch
        data.consumed = number * n
        return rows_of(first(data, n))

    first_epoch = epoch()
    assert epoch(max_tokens=500) == first_epoch
    assert len(epoch(1) - first_epoch) > 100
    assert len(epoch(seed=2) - first_epoch) > 100


def test_samples_are_at_most_max_length(small: Callable, first: Callable, seen: Callable) -> None:
    plain, sampled = small(max_length=16), small(max_length=16, tokenizer=sampling(0.9))
    batches = first(sampled, sampled.plan.batches_per_epoch)
    assert max(max(batch.src.size(1), batch.tgt_in.size(1)) for batch in batches) <= 17
    assert seen(sampled) == seen(plain)


@pytest.mark.parametrize("options", [{}, {"directions": BOTH, "tokenizer": sampling(0, 342)}])
def test_batches_are_within_the_budget_and_as_planned(small: Callable, first: Callable, options: dict) -> None:
    data = small(**options)
    shapes = []
    for batch in first(data, data.plan.batches_per_epoch):
        assert max(batch.src.numel(), batch.tgt_in.numel()) <= 300
        shapes.append([*batch.src.shape, batch.tgt_out.size(1), batch.n_tokens])
    assert sorted(shapes) == sorted(data.plan.shapes.tolist())


def test_validation_is_finite_and_complete(small: Callable) -> None:
    data = small(validation_size=10)
    loader = data.val_dataloader()
    batches = list(loader)
    assert len(batches) == len(loader)
    assert equal(batches, list(loader))
    texts = sorted(data.src_tokenizer.decode(ids) for batch in batches for ids in batch.src.tolist())
    assert texts == sorted(pair.src for pair in data.validation)


def test_long_validation_pairs_are_scored_but_have_no_loss(small: Callable, write: Callable, pairs: list) -> None:
    held_out = [("我喜欢书。" * 60, "I like the book. " * 60), pairs[0]]
    validation = CorpusConfig(path=write("b.tsv", held_out), split="validation")
    data = small(write("a.tsv", pairs[1:]), validation)
    assert len(data.validation) == 2
    assert sum(len(batch.src) for batch in data.val_dataloader()) == 1


def directed(data: TranslationData, batches: list[Batch]) -> Counter[tuple[str, str, str]]:
    """(tag, source, target) of every row."""
    tokenizer = data.src_tokenizer
    return Counter(
        (tokenizer.pieces(src[:1])[0], tokenizer.decode(src), tokenizer.decode(tgt))
        for batch in batches
        for src, tgt in zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True)
    )


@pytest.mark.parametrize(("p", "lowercase"), [(0.0, 0.3), (0.3, 0.0)])
def test_both_directions_show_each_pair_both_ways(
    small: Callable, first: Callable, pairs: list, p: float, lowercase: float
) -> None:
    data = small(directions=BOTH, tokenizer=sampling(p, 342), lowercase=lowercase)
    rows = directed(data, first(data, data.plan.batches_per_epoch))
    forward = {(src, tgt) for tag, src, tgt in rows if tag == "<2en>"}
    sources, targets = zip(*((src, tgt) for tag, src, tgt in rows if tag == "<2zh>"), strict=True)
    assert sum(map(str.islower, sources)) / len(sources) == pytest.approx(lowercase, abs=0.1)
    assert forward == set(zip(targets, map(str.capitalize, sources), strict=True))
    assert forward < set(pairs)
    assert len(rows) == rows.total() == 2 * data.train_size


def test_validation_of_both_directions_holds_each_pair_twice(small: Callable) -> None:
    data = small(directions=BOTH, tokenizer=sampling(0, 342), validation_size=10)
    expected = [("<2en>", pair.src, pair.tgt) for pair in data.validation]
    expected += [("<2zh>", pair.tgt, pair.src) for pair in data.validation]
    assert directed(data, list(data.val_dataloader())) == Counter(expected)


def test_an_unknown_tokenizer_kind_fails_before_any_work(tmp_path: Path) -> None:
    for tokenizer in (TokenizerConfig(kind="bpee"), TokenizerConfig(kind="char", sampling=0.1)):
        with pytest.raises(UserError, match=r"data\.tokenizer\.kind=\w+: choose one of bpe, unigram"):
            TranslationData(DataConfig(tokenizer=tokenizer), tmp_path, 1)

"""The stream of batches: the same from any point, for any number of workers; validation finite; the position kept."""

import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from corpora import PAIRS, write_tsv

from dragoman.data.collate import Batch
from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import DataConfig, TranslationData
from dragoman.data.tokenizer import TokenizerConfig
from dragoman.errors import UserError

Prepare = Callable[..., TranslationData]
CORPORA = os.environ.get("DRAGOMAN_DATA", "")  # read before conftest hides it from the tests


@pytest.fixture
def small(prepared: Prepare, tmp_path: Path) -> Prepare:
    """PAIRS in batches of at most 300 tokens."""
    corpus = CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", PAIRS)))

    def prepare(**options: object) -> TranslationData:
        return prepared(options.pop("corpus", corpus), **{"max_tokens": 300, "max_length": 64} | options)

    return prepare


def first(data: TranslationData, n: int) -> list[Batch]:
    return list(itertools.islice(data.train_dataloader(), n))


def equal(some: list[Batch], others: list[Batch]) -> bool:
    return len(some) == len(others) and all(
        torch.equal(a.src, b.src) and torch.equal(a.tgt_out, b.tgt_out)
        for a, b in zip(some, others, strict=True)
    )


def sentences(data: TranslationData, batches: list[Batch]) -> Counter[str]:
    return Counter(data.src_tokenizer.decode(row.tolist()) for batch in batches for row in batch.src)


@pytest.mark.parametrize("sampling", [0.0, 0.2])
def test_the_stream_continues_anywhere_as_if_it_had_never_stopped(small: Prepare, sampling: float) -> None:
    tokenizer = TokenizerConfig(vocab_size=340, sampling=sampling)
    data = small(tokenizer=tokenizer)
    per_epoch = data.batches_per_epoch
    whole = first(data, 2 * per_epoch + 5)
    for consumed in (1, per_epoch - 1, per_epoch, per_epoch + 3, 2 * per_epoch):
        resumed = small(tokenizer=tokenizer)
        resumed.load_state_dict(data.state_dict() | {"consumed": consumed})
        assert equal(first(resumed, len(whole) - consumed), whole[consumed:])


@pytest.mark.parametrize("sampling", [0.0, 0.2])
def test_workers_change_nothing_not_even_the_random_state_of_training(
    small: Prepare, sampling: float
) -> None:
    tokenizer = TokenizerConfig(vocab_size=340, sampling=sampling)
    alone = first(small(tokenizer=tokenizer), 12)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    helped = first(small(tokenizer=tokenizer, workers=2), 12)
    assert equal(alone, helped)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_epoch_shows_each_pair_once_and_those_of_a_repeated_corpus_as_often_as_asked(
    small: Prepare, tmp_path: Path
) -> None:
    corpus = CorpusConfig(path=str(write_tsv(tmp_path / "b.tsv", PAIRS[:200])), repeat=3)
    data = small(corpus=corpus)
    data.consumed = data.batches_per_epoch
    seen = sentences(data, first(data, data.batches_per_epoch))
    assert set(seen.values()) == {3}
    assert data.train_size == seen.total()


def test_ranks_share_an_epoch_between_them(small: Prepare) -> None:
    everything: Counter[str] = Counter()
    counts = set()
    for rank in range(3):
        data = small()
        data.trainer = SimpleNamespace(global_rank=rank, world_size=3)  # type: ignore[assignment]
        batches = first(data, data.batches_per_epoch)
        counts.add(len(batches))
        everything += sentences(data, batches)
    alone = small()
    once = sentences(alone, first(alone, alone.batches_per_epoch))
    assert counts == {-(-alone.batches_per_epoch // 3)}
    assert set(everything) == set(once)


def test_ranks_cut_equal_sentences_differently(small: Prepare) -> None:
    tokenizer = TokenizerConfig(vocab_size=340, sampling=0.4)
    seeds = set()
    for rank in range(2):
        data = small(tokenizer=tokenizer)
        data.trainer = SimpleNamespace(global_rank=rank, world_size=2)  # type: ignore[assignment]
        seeds |= {ticket[0] for ticket in itertools.islice(data.train_dataloader()._tickets(), 5)}
    assert len(seeds) == 10


def test_another_seed_gives_another_order_and_another_epoch_other_samples(
    small: Prepare, prepared: Prepare
) -> None:
    tokenizer = TokenizerConfig(vocab_size=340, sampling=0.2)
    data, other = small(tokenizer=tokenizer), small(tokenizer=tokenizer, seed=2)
    assert not equal(first(data, 5), first(other, 5))
    epochs = first(data, 2 * data.batches_per_epoch)
    half = data.batches_per_epoch
    pieces = [
        Counter(i for batch in part for i in batch.src.flatten().tolist())
        for part in (epochs[:half], epochs[half:])
    ]
    assert pieces[0] != pieces[1]


def test_sampling_cuts_sentences_finer_and_loses_none(small: Prepare) -> None:
    plain = small()
    sampled = small(tokenizer=TokenizerConfig(vocab_size=340, sampling=0.3))
    n = plain.batches_per_epoch
    batches, others = first(plain, n), first(sampled, n)
    assert sentences(plain, batches) == sentences(sampled, others)
    assert sum(batch.n_tokens for batch in others) > sum(batch.n_tokens for batch in batches)


def test_batches_keep_to_the_budget_with_the_special_ids(small: Prepare) -> None:
    for batch in first(small(), 40):
        assert max(batch.src.numel(), batch.tgt_in.numel()) <= 300


def test_validation_is_finite_sorted_and_whole(small: Prepare) -> None:
    data = small(validation_size=12)
    loader = data.val_dataloader()
    batches = list(loader)
    assert len(batches) == len(loader)
    assert equal(batches, list(loader))  # may be asked for again
    assert sentences(data, batches) == Counter(pair.src for pair in data.validation)
    widths = [max(batch.src.shape[1], batch.tgt_in.shape[1]) for batch in batches]
    assert widths == sorted(widths, reverse=True)


def test_validation_pairs_beyond_the_longest_training_length_are_scored_but_cost_no_loss(
    prepared: Prepare, tmp_path: Path
) -> None:
    held = [("我喜欢书。" * 60, "I like the book. " * 60), PAIRS[0]]
    data = prepared(
        CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", PAIRS[1:]))),
        CorpusConfig(path=str(write_tsv(tmp_path / "b.tsv", held)), split="validation"),
        max_length=64,
    )
    assert len(data.validation) == 2
    assert sum(len(batch) for batch in data.val_dataloader()) == 1


def test_no_validation_at_all_is_an_empty_list(small: Prepare) -> None:
    data = small(validation_size=0, test_size=0)
    assert len(data.validation) == len(data.test) == 0
    assert list(data.val_dataloader()) == []


def test_a_checkpoint_of_other_data_is_refused(small: Prepare, tmp_path: Path) -> None:
    state = small().state_dict()
    other = small(corpus=CorpusConfig(path=str(write_tsv(tmp_path / "b.tsv", PAIRS[:300]))))
    with pytest.raises(UserError, match="the data has changed"):
        other.load_state_dict(state)


def test_asking_before_preparing_is_a_fault_of_the_program(tmp_path: Path) -> None:
    data = TranslationData(DataConfig(), tmp_path, 1)
    with pytest.raises(RuntimeError, match="prepare"):
        data.train_dataloader()


@pytest.mark.skipif(not (Path(CORPORA) / "tatoeba").is_dir(), reason="needs DRAGOMAN_DATA with tatoeba")
def test_tatoeba_pads_at_most_eight_percent(prepared: Prepare) -> None:
    corpus = CorpusConfig(path=str(Path(CORPORA) / "tatoeba"))
    data = prepared(corpus, tokenizer=TokenizerConfig(vocab_size=8000), max_tokens=4096)
    batches = first(data, data.batches_per_epoch)
    positions = sum(batch.src.numel() + batch.tgt_in.numel() for batch in batches)
    padding = sum(batch.padding_share * (batch.src.numel() + batch.tgt_in.numel()) for batch in batches)
    assert padding / positions <= 0.08
    assert data.padding_share == pytest.approx(padding / positions)
    longest = max(max(batch.src.shape[1], batch.tgt_in.shape[1]) for batch in batches)
    assert max(batches[0].src.shape[1], batches[0].tgt_in.shape[1]) == longest
    assert max(len(pair.references) for pair in data.test) > 1

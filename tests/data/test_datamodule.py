"""The stream of batches: the same from any point, for any number of workers; validation finite; the position kept."""

import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from corpora import PAIRS, write_tsv
from dragoman.data.collate import Batch
from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import DataConfig, TranslationData
from dragoman.data.tokenizer import TokenizerConfig
from dragoman.errors import UserError
from dragoman.special import EOS

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


@pytest.mark.parametrize("packing", ["off", "rows", "flat"])
@pytest.mark.parametrize("sampling", [0.0, 0.2])
def test_the_stream_continues_anywhere_as_if_it_had_never_stopped(
    small: Prepare, sampling: float, packing: str
) -> None:
    tokenizer = TokenizerConfig(vocab_size=340, sampling=sampling)
    data = small(tokenizer=tokenizer, packing=packing)
    per_epoch = data.batches_per_epoch
    whole = first(data, 2 * per_epoch + 5)
    for consumed in (1, per_epoch - 1, per_epoch, per_epoch + 3, 2 * per_epoch):
        resumed = small(tokenizer=tokenizer, packing=packing)
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


def test_how_a_sentence_is_cut_depends_on_seed_epoch_and_pair_and_not_on_its_batch(small: Prepare) -> None:
    tokenizer = TokenizerConfig(vocab_size=340, sampling=0.4)

    def cuts(epoch: int = 0, **differently: Any) -> set[tuple[tuple[int, ...], ...]]:
        """Of one epoch: the pairs of all ranks, as they were cut."""
        rank_of, world_size = differently.pop("rank_of", range(1)), differently.pop("world_size", 1)
        found = set()
        for rank in rank_of:
            data = small(tokenizer=tokenizer, **differently)
            data.trainer = SimpleNamespace(global_rank=rank, world_size=world_size)  # type: ignore[assignment]
            n = data.batches_per_epoch
            for batch in first(data, (epoch + 1) * n)[epoch * n :]:
                for src, tgt in zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True):
                    found.add((tuple(i for i in src if i), tuple(i for i in tgt if i)))
        return found

    assert cuts() == cuts(max_tokens=500) == cuts(rank_of=range(2), world_size=2)
    assert cuts(epoch=1) == cuts(epoch=1, max_tokens=500)
    assert len(cuts(epoch=1) - cuts()) > 100
    assert len(cuts(seed=2) - cuts()) > 100


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


def test_chance_cuts_no_sentence_into_more_pieces_than_max_length(small: Prepare) -> None:
    finest = TokenizerConfig(vocab_size=340, sampling=0.9)
    n = (free := small(tokenizer=finest)).batches_per_epoch
    longest = max(max(batch.src.size(1), batch.tgt_in.size(1)) for batch in first(free, n)) - 1
    bound = longest - 2
    bounded = small(tokenizer=finest, max_length=bound)
    plain = small(max_length=bound)
    batches, others = (first(data, data.batches_per_epoch) for data in (bounded, plain))
    assert all(max(batch.src.size(1), batch.tgt_in.size(1)) <= bound + 1 for batch in batches)
    assert sentences(bounded, batches) == sentences(plain, others)


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


BOTH = ["zh_en", "en_zh"]


def read_and_written(data: TranslationData, batches: list[Batch]) -> Counter[tuple[str, str, str]]:
    """(tag, source, target) of every row; the tag is the piece that the source begins with."""
    tokenizer = data.src_tokenizer
    return Counter(
        (tokenizer.pieces(src[:1])[0], tokenizer.decode(src), tokenizer.decode(tgt))
        for batch in batches
        for src, tgt in zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True)
    )


@pytest.mark.parametrize("sampling", [0.0, 0.3])
@pytest.mark.parametrize("names", [BOTH, BOTH[::-1]], ids=str)
def test_both_directions_show_each_pair_both_ways_behind_the_tag_of_its_target(
    small: Prepare, names: list[str], sampling: float
) -> None:
    data = small(directions=names, tokenizer=TokenizerConfig(vocab_size=342, sampling=sampling))
    seen = read_and_written(data, first(data, data.batches_per_epoch))
    assert set(seen.values()) == {1}
    there = {(src, tgt) for tag, src, tgt in seen if tag == "<2en>"}
    back = {(tgt, src) for tag, src, tgt in seen if tag == "<2zh>"}
    assert there == back
    assert there < set(PAIRS)
    assert len(seen) == 2 * data.train_size == 2 * len(there)


@pytest.mark.parametrize("sampling", [0.0, 0.2])
def test_the_stream_of_both_directions_continues_anywhere_whatever_the_workers(
    small: Prepare, sampling: float
) -> None:
    options = {"directions": BOTH, "tokenizer": TokenizerConfig(vocab_size=342, sampling=sampling)}
    data = small(**options)
    whole = first(data, data.batches_per_epoch + 4)
    assert {tag for batch in whole[:3] for tag, _, _ in read_and_written(data, [batch])} == {"<2en>", "<2zh>"}
    for consumed, workers in ((3, 0), (data.batches_per_epoch - 1, 2), (data.batches_per_epoch + 1, 0)):
        resumed = small(**options, workers=workers)
        resumed.load_state_dict(data.state_dict() | {"consumed": consumed})
        assert equal(first(resumed, len(whole) - consumed), whole[consumed:])


def test_the_plan_of_both_directions_counts_the_tags(small: Prepare) -> None:
    data = small(directions=BOTH, tokenizer=TokenizerConfig(vocab_size=342))
    batches = first(data, data.batches_per_epoch)
    positions = [batch.src.numel() + batch.tgt_in.numel() for batch in batches]
    padding = sum(batch.padding_share * n for batch, n in zip(batches, positions, strict=True))
    assert data.padding_share == pytest.approx(padding / sum(positions))
    assert max(max(batch.src.numel(), batch.tgt_in.numel()) for batch in batches) <= 300


def test_validation_of_both_directions_reads_every_pair_both_ways(small: Prepare) -> None:
    data = small(directions=BOTH, tokenizer=TokenizerConfig(vocab_size=342), validation_size=12)
    expected = [("<2en>", pair.src, pair.tgt) for pair in data.validation]
    expected += [("<2zh>", pair.tgt, pair.src) for pair in data.validation]
    assert read_and_written(data, list(data.val_dataloader())) == Counter(expected)


def test_both_directions_share_the_clean_texts_store_ids_once_and_have_a_fingerprint_of_their_own(
    small: Prepare,
) -> None:
    one = small()
    both = small(directions=BOTH, tokenizer=TokenizerConfig(vocab_size=340), run="both")
    named = small(directions=BOTH[:1], run="named")
    assert both.prepared.texts == one.prepared.texts
    assert [len(side) for side in both.prepared.train_ids()] == [one.train_size] * 2
    assert one.fingerprint == named.fingerprint != both.fingerprint
    with pytest.raises(UserError, match="the data has changed"):
        both.load_state_dict(one.state_dict())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"directions": ["zh_fr"]}, "data.directions: .*'zh_fr'.*zh_en, en_zh"),
        ({"directions": ["en_zh"]}, "data.directions is en_zh alone"),
        ({"directions": ["zh_en", "zh_en"]}, "twice"),
        (
            {"directions": BOTH, "tokenizer": TokenizerConfig(vocabulary="separate")},
            "data.tokenizer.vocabulary=joint",
        ),
        ({"directions": BOTH, "max_tokens": 257}, "data.max_tokens is 257"),
    ],
)
def test_directions_that_cannot_be_learnt_are_refused_naming_the_key(options: dict, told: str) -> None:
    with pytest.raises(UserError, match=told):
        DataConfig(**options)
    assert DataConfig(max_tokens=257).longest == 257


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


@pytest.mark.parametrize("packing", ["rows", "flat"])
def test_a_packed_epoch_shows_the_pairs_of_a_padded_one_in_both_directions_too(
    small: Prepare, packing: str
) -> None:
    def pairs(**options: object) -> tuple[Counter[str], TranslationData]:
        data = small(tokenizer=TokenizerConfig(vocab_size=342), max_tokens=600, **options)
        seen: Counter[str] = Counter()
        for batch in first(data, data.batches_per_epoch):
            src, tgt = (side.flatten().tolist() for side in (batch.src, batch.tgt_out))
            for side, tokenizer in ((src, data.src_tokenizer), (tgt, data.tgt_tokenizer)):
                ends = [i for i, piece in enumerate(side) if piece == EOS]
                for start, stop in itertools.pairwise([-1, *ends]):
                    seen[tokenizer.decode(side[start + 1 : stop])] += 1
        return seen, data

    both = ["zh_en", "en_zh"]
    padded, _ = pairs(directions=both, packing="off")
    packed, data = pairs(directions=both, packing=packing)
    assert packed == padded
    batches = first(data, data.batches_per_epoch)
    positions = [batch.src.numel() + batch.tgt_out.numel() for batch in batches]
    padding = sum(batch.padding_share * n for batch, n in zip(batches, positions, strict=True))
    assert data.padding_share == pytest.approx(padding / sum(positions))
    assert max(batch.n_tokens for batch in batches) <= 600

"""ids by ids: what a model's table of positions allows, and that nothing is computed twice or for nobody."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dragoman.errors import UserError
from dragoman.model.position import PositionConfig
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.search import warp
from dragoman.search.search import Hypothesis, SearchConfig
from dragoman.torch_engine import laid_out, translate_ids

LENGTH = 8
SEARCHES = [
    SearchConfig(kind="greedy"),
    SearchConfig(kind="beam", beam_size=3),
    SearchConfig(kind="sample", n_best=2),
]
each_search = pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.kind)


def never_ending(kind: str) -> Transformer:
    """A model that does not know when to stop: its weights are random, and EOS is unlikely."""
    torch.manual_seed(1)
    config = ModelConfig(
        d_model=16,
        d_ff=16,
        n_heads=2,
        n_encoder_layers=1,
        n_decoder_layers=1,
        tie="tgt",
        position=PositionConfig(kind=kind, length=LENGTH),
    )
    return Transformer(config, src_vocab_size=30, tgt_vocab_size=300)


@pytest.mark.parametrize("kind", ["learned", "unit"])
@each_search
def test_no_translation_runs_past_the_table_of_positions(kind: str, search: SearchConfig) -> None:
    sources = [[5] * n for n in range(1, LENGTH)]
    answers = translate_ids(never_ending(kind), sources, search)
    lengths = [len(hypothesis.ids) for hypotheses in answers for hypothesis in hypotheses]
    assert max(lengths) == LENGTH - 1  # it would have gone on


@each_search
def test_where_positions_do_not_end_the_search_alone_decides(search: SearchConfig) -> None:
    answers = translate_ids(never_ending("rope"), [[5]], search)
    assert max(len(hypothesis.ids) for hypothesis in answers[0]) == search.max_length(1) > LENGTH


@pytest.mark.parametrize("kind", ["learned", "unit"])
def test_a_source_longer_than_the_table_is_refused_with_the_key_that_made_it(kind: str) -> None:
    model = never_ending(kind)
    with pytest.raises(UserError, match=rf"{LENGTH} pieces is too long .* model.position.length={LENGTH}"):
        translate_ids(model, [[5], [5] * LENGTH], SearchConfig())


def words(n: int, longest: int = 12) -> list[list[int]]:
    return [[5 + (7 * i + 3 * j) % 20 for j in range(1 + (5 * i) % longest)] for i in range(n)]


def taught_to_stop(**changes: object) -> Transformer:
    """Random weights that end a sentence now and then."""
    torch.manual_seed(3)
    small = {
        "d_model": 16,
        "d_ff": 16,
        "n_heads": 2,
        "n_encoder_layers": 1,
        "n_decoder_layers": 2,
        "tie": "tgt",
    }
    model = Transformer(ModelConfig(**{**small, **changes}), src_vocab_size=30, tgt_vocab_size=40)  # type: ignore[arg-type]
    torch.nn.init.normal_(model.tgt_embedding.table.weight, std=1.0)
    return model.eval()


def ids(answers: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in answers]


@each_search
def test_a_batch_is_encoded_once_and_its_keys_are_made_once_for_each_sentence(
    search: SearchConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, encoded, projected = taught_to_stop(), [], []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda src, *rest: encoded.append(src.shape) or encode(src, *rest))
    for layer in model.decoder:
        layer.cross_attention.kv.register_forward_pre_hook(
            lambda _, args: projected.append(args[0].shape[:2])
        )
    translate_ids(model, words(6), search, batch_tokens=10**6)
    assert encoded == [(6, 13 - 1)]  # the longest has 11 pieces
    assert projected == [(6, 12)] * 2  # a layer each; not once a beam, a draw or a step


@each_search
def test_a_finished_sentence_leaves_the_batch(search: SearchConfig) -> None:
    model, n_rows = taught_to_stop(), []
    model.tgt_embedding.register_forward_pre_hook(lambda _, args: n_rows.append(len(args[0])))
    answers = translate_ids(model, words(12), search, batch_tokens=10**6)
    if search.kind == "beam":
        assert n_rows == sorted(n_rows, reverse=True)
        assert n_rows[0] == 12 * 3 > n_rows[-1]
        assert all(n % 3 == 0 for n in n_rows)
    else:  # no row is computed but for a piece that is written, or an end mark
        assert sum(n_rows) == sum(len(h.token_scores) for hypotheses in answers for h in hypotheses)
        assert n_rows[0] > n_rows[-1]


@each_search
def test_the_size_and_order_of_batches_change_nothing(search: SearchConfig) -> None:
    model, sources = taught_to_stop(), words(20)
    together = translate_ids(model, sources, search, batch_tokens=10**6)
    alone = translate_ids(model, sources, search, batch_tokens=1)
    shuffled = list(range(len(sources)))[::-1]
    turned = translate_ids(model, [sources[i] for i in shuffled], search, lines=shuffled)
    assert ids(together) == ids(alone) == ids(turned)[::-1]
    for one, other in zip(together, alone, strict=True):
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-5)


@pytest.fixture
def two_threads(set_threads: Callable[[int], None]) -> None:
    set_threads(2)


@each_search
def test_two_threads_find_what_one_finds_and_are_given_back(search: SearchConfig, two_threads: None) -> None:
    model, sources, told = taught_to_stop(), words(20), []
    side_by_side = translate_ids(model, sources, search, batch_tokens=60, progress=told.append)
    assert torch.get_num_threads() == 2
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 2
    torch.set_num_threads(1)
    assert ids(side_by_side) == ids(translate_ids(model, sources, search, batch_tokens=60))
    assert len(told) > 2
    assert sum(told) == 20


def test_every_thread_computes_in_the_precision_of_its_caller(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = taught_to_stop(), []
    allowed = warp.log_probabilities

    def log_probabilities(logits: torch.Tensor, *, first: bool) -> torch.Tensor:
        seen.append(logits.dtype)
        return allowed(logits, first=first)

    monkeypatch.setattr(warp, "log_probabilities", log_probabilities)
    with torch.autocast("cpu", torch.bfloat16):
        translate_ids(model, words(20), SEARCHES[0], batch_tokens=60)
    assert set(seen) == {torch.bfloat16}
    seen.clear()
    translate_ids(model, words(20), SEARCHES[0], batch_tokens=60)
    assert set(seen) == {torch.float32}


def test_what_goes_wrong_in_a_thread_is_told(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = taught_to_stop()

    def broken(*_: object) -> None:
        raise ValueError("out of order")

    monkeypatch.setattr(model, "encode", broken)
    with pytest.raises(ValueError, match="out of order"):
        translate_ids(model, words(20), SEARCHES[0], batch_tokens=60)
    assert torch.get_num_threads() == 2


@each_search
def test_how_weights_lie_in_memory_changes_no_weight_and_no_answer(search: SearchConfig) -> None:
    model = taught_to_stop(tie="tgt")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    answers = translate_ids(model, words(20), search)
    assert laid_out(model) is model
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert before.keys() == model.state_dict().keys()
    assert model.decoder[0].feed_forward.up.weight.stride(0) == 1
    assert ids(translate_ids(model, words(20), search)) == ids(answers)

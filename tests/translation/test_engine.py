"""Torch engine, ids -> ids: batches, limits and vectors."""

import math
from collections.abc import Callable
from threading import current_thread, main_thread

import pytest
import torch

from dragoman.config import ModelConfig, PositionConfig, SearchConfig
from dragoman.errors import UserError
from dragoman.model.position import POSITIONS
from dragoman.model.transformer import Transformer
from dragoman.search import Hypothesis
from dragoman.search.search import plain_greedy
from dragoman.special import BOS, EOS
from dragoman.translation.engine import choose_device, log_probs, translate_ids

LENGTH = 8
SEARCHES = [SearchConfig(kind="greedy"), SearchConfig(kind="beam", beam_size=3), SearchConfig(kind="sample", n_best=2)]
each_search = pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.kind)
POSITION = PositionConfig(kind="sinusoidal")


def make(position: PositionConfig = POSITION, *, deviation: float = 1.0, n_words: int = 40) -> Transformer:
    """Random model; a larger deviation of the word vectors sharpens its distributions."""
    torch.manual_seed(3)
    small = {"d_model": 16, "d_ff": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 2}
    config = ModelConfig(**small, tie="tgt", position=position)
    model = Transformer(config, src_vocab_size=30, tgt_vocab_size=n_words)
    torch.nn.init.normal_(model.tgt_embedding.table.weight, std=deviation)
    return model.eval()


def words(n: int, longest: int = 12) -> list[list[int]]:
    return [[5 + (7 * i + 3 * j) % 20 for j in range(1 + (5 * i) % longest)] for i in range(n)]


def ids(results: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in results]


@each_search
def test_no_translation_runs_past_the_positions(search: SearchConfig) -> None:
    model = make(PositionConfig(kind="learned", length=LENGTH), deviation=0.01, n_words=300)
    results = translate_ids(model, [[5] * n for n in range(1, LENGTH)], search)
    assert max(len(h.ids) for hypotheses in results for h in hypotheses) == LENGTH - 1


def test_the_cached_search_equals_the_plain_loop(assert_same: Callable[..., None]) -> None:
    sources, config = words(3), SearchConfig(kind="greedy", max_length_a=0, max_length_b=6)
    for kind in POSITIONS:
        model, plain = make(PositionConfig(kind=kind)).requires_grad_(False), []
        for source in sources:
            memory = model.encode(torch.tensor([[*source, EOS]]), None)
            plain.append(plain_greedy(lambda tgt, m=memory, f=model: f.projection(f.decode(tgt, m, None)[:, -1]), 6))
        results = translate_ids(model, sources, config)
        assert_same(model, sources, results, [[Hypothesis(own, math.nan, [])] for own in plain])


def test_an_unknown_search_is_named_with_the_choices() -> None:
    with pytest.raises(UserError, match=r"search\.kind=beems: choose one of greedy, beam, sample"):
        translate_ids(make(), words(1), SearchConfig(kind="beems"))


def test_the_budget_counts_the_rows_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shapes = make(), []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda src, mask: shapes.append(src.shape) or encode(src, mask))
    translate_ids(model, words(20), SearchConfig(beam_size=4), batch_tokens=200)
    assert len(shapes) > 1
    assert all(4 * n_rows * length <= 200 for n_rows, length in shapes)


def test_threads_compute_as_the_caller_would(request: pytest.FixtureRequest) -> None:
    before = torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(before))
    torch.set_num_threads(2)
    model, seen, sources, counts = make(), set(), words(12), []
    results = translate_ids(model, sources, SEARCHES[0], batch_tokens=60, progress=counts.append)
    assert len(counts) > 2
    assert counts == sorted(counts)
    assert counts[-1] == 12
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert ids(results) == ids(translate_ids(model, sources, SEARCHES[0], batch_tokens=60))
    torch.set_num_threads(2)
    model.decoder_norm.register_forward_pre_hook(
        lambda _, args: seen.add((args[0].requires_grad, current_thread() is main_thread()))
    )
    model.decoder[0].cross_attention.out.register_forward_hook(lambda *args: seen.add(args[2].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        translate_ids(model, sources, SEARCHES[0], batch_tokens=60)
    assert seen == {(False, False), torch.bfloat16}


def test_the_log_probs_of_a_pair_are_those_of_its_pieces() -> None:
    model = make()
    for source, target in zip(words(4), words(4, longest=5)[::-1], strict=True):
        src, tgt = torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target]])
        with torch.no_grad():
            rows = model(src, tgt, None).log_softmax(-1)[0]
        expected = [float(row[i]) for row, i in zip(rows, [*target, EOS], strict=True)]
        assert log_probs(model, source, target).tolist() == pytest.approx(expected, abs=1e-4)


def test_an_unknown_device_is_named_with_the_choices() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    for name in ("gpu", "cuda:99"):
        with pytest.raises(UserError, match=f"device '{name}': not available here. Choose auto, cpu"):
            choose_device(name)

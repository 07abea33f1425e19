"""ids by ids with torch: what a model's table of positions allows."""

import pytest
import torch

from dragoman.errors import UserError
from dragoman.model.position import PositionConfig
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.search.search import SearchConfig
from dragoman.torch_engine import translate_ids

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

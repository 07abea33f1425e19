"""Initial weights from the lexicon."""

from functools import partial

import numpy as np
import torch

from dragoman.training.fit import prepare
from dragoman.training.initial import lexicon, start_from_lexicon


def test_source_pieces_start_between_their_translations(runs):
    config = runs.config("run")
    config, data, module = prepare(config, runs.folder / "run", {})
    model = module.model
    targets = model.tgt_embedding.table.weight.detach().clone()
    size = len(data.src_tokenizer)
    src, tgt, weights = lexicon(data.train_ids, src_size=size, tgt_size=size, joint=True)
    report = start_from_lexicon(model, data)
    assert report == {"pieces": size, "covered": len(np.unique(src))}
    assert report["covered"] > 10
    for piece in np.unique(src)[:10]:
        of_piece = src == piece
        mean = (torch.from_numpy(weights[of_piece, None]).float() * targets[tgt[of_piece]]).sum(dim=0)
        cosine = torch.cosine_similarity(mean, model.src_embedding.table.weight[piece], dim=0)
        assert cosine > 0.9999


def test_cross_attention_starts_by_returning_what_it_attends_to(runs):
    config = runs.config("run", model={"dropout": 0.0})
    config, data, module = prepare(config, runs.folder / "run", {})
    model = module.model
    start_from_lexicon(model, data)
    first, second = torch.randn(2, 1, 1, config.model.d_model)
    attend = partial(model.decoder[0].cross_attention, torch.randn(1, 3, config.model.d_model))
    # The difference, because both outputs contain the biases.
    torch.testing.assert_close(attend(first) - attend(second), (first - second).expand(1, 3, -1))

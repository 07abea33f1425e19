"""Initial weights from the lexicon."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch.nn import functional as F

from dragoman.training.fit import prepare
from dragoman.training.initial import lexicon, start_from_lexicon


def test_source_pieces_start_between_their_translations(runs):
    config = runs.config("run")
    config, data, module = prepare(config, runs.folder / "run", {})
    model = module.model
    targets = model.tgt_embedding.table.weight.detach().clone()
    size = len(data.src_tokenizer)
    src, tgt, weights = lexicon(data.train_ids, tgt_size=size, joint=True)
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


def test_only_pieces_of_targets_are_possible(runs):
    config = runs.config("run")
    data_config = replace(config.data, tokenizer=replace(config.data.tokenizer, sampling=0.0))
    _, data, module = prepare(replace(config, data=data_config), runs.folder / "run", {})
    projection, tokenizer = module.model.projection, data.tgt_tokenizer
    pieces = tokenizer.pieces(range(len(projection.bias)))
    possible = {piece for piece, bias in zip(pieces, projection.bias, strict=True) if bias == 0}
    chinese = {piece for piece in pieces if max(piece) > "一"}
    assert len(chinese) > len(chinese & possible) == 0
    targets = [tokenizer.encode(pair.tgt) for pair in data.validation] + [data.train_ids[1].tolist()]
    assert {"</s>", "<0x00>", "<0xFF>"}.union(*map(tokenizer.pieces, targets)) <= possible
    batch = next(iter(data.val_dataloader()))
    with torch.inference_mode():  # with init_from a validation comes first
        module._loss(module._forward(batch, module.model), module.model)
    states, golds = module._forward(batch, module.model)
    loss, _ = module._loss((states, golds), module.model)
    torch.testing.assert_close(loss, F.cross_entropy(projection(states), golds, reduction="sum"))

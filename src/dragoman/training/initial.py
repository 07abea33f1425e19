"""Initial weights: from a trained model, from word vectors, or from a lexicon."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from dragoman.config import Config
from dragoman.data.datamodule import TranslationData
from dragoman.data.lexicon import lexicon
from dragoman.errors import UserError
from dragoman.explain.vectors import start_from_vectors
from dragoman.export import huggingface
from dragoman.model.layers import DecoderLayer
from dragoman.model.transformer import Transformer
from dragoman.training.module import TranslationModule


def adapted(config: Config) -> Config:
    """Take the model's shape and the vocabulary from `init_from`, if it is set."""
    if config.init_from is None:
        return config
    info = huggingface.load(Path(config.init_from))
    if info.directions != config.data.every_direction:
        theirs, ours = (" and ".join(map(str, each)) for each in (info.directions, config.data.every_direction))
        hint = "Change data.src and data.tgt, or data.directions"
        raise UserError(f"init_from={config.init_from}: translates {theirs}, but data has {ours}. {hint}")
    if config.data.tokenizer.models:
        raise UserError(f"init_from={config.init_from}: has a vocabulary of its own. Leave data.tokenizer.models out")
    models = list(dict.fromkeys(str(each.path) for each in (info.src_tokenizer, info.tgt_tokenizer)))
    vocabulary = "joint" if len(models) == 1 else "separate"
    tokenizer = dataclasses.replace(config.data.tokenizer, models=models, vocabulary=vocabulary)
    dropouts = {name: getattr(config.model, name) for name in ("dropout", "activation_dropout", "attention_dropout")}
    model = dataclasses.replace(info.model_config, **dropouts)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, tokenizer=tokenizer), model=model)


def set_initial_weights(
    config: Config, data: TranslationData, module: TranslationModule, metrics: dict[str, Any]
) -> None:
    """Take weights from `init_from` or model.embedding.init, where one is set."""
    init, model = config.model.embedding.init, module.model
    if config.init_from is not None:
        weights = huggingface.load(Path(config.init_from)).model.state_dict()
        model.load_state_dict(weights)
        module.best_model.load_state_dict(weights)
    elif init == "lexicon":
        metrics["vectors"] = start_from_lexicon(model, data)
    elif init is not None:
        metrics["vectors"] = start_from_vectors(model, Path(init), data.src_tokenizer, data.tgt_tokenizer)


@torch.no_grad()
def start_from_lexicon(model: Transformer, data: TranslationData) -> dict[str, int]:
    """Initialise the vectors of source pieces by those of their translations.

    The vector of a piece is the weighted mean of the vectors of its translations. The value and output projections of
    cross-attention are identity matrices. A decoder that attends to a source piece then predicts its translations
    before any training. Returns {"pieces": number of source pieces, "covered": those with a translation}.
    """
    joint = data.src_tokenizer.sha256 == data.tgt_tokenizer.sha256
    sizes = {"src_size": len(data.src_tokenizer), "tgt_size": len(data.tgt_tokenizer)}
    src, tgt, weights = lexicon(data.train_ids, **sizes, joint=joint)
    pieces, rows = np.unique(src, return_inverse=True)
    places, shape = torch.from_numpy(np.stack([rows, tgt])), (len(pieces), len(data.tgt_tokenizer))
    translations = torch.sparse_coo_tensor(places, torch.from_numpy(weights).float(), shape, check_invariants=True)
    means = torch.sparse.mm(translations, model.tgt_embedding.table.weight)
    model.src_embedding.start_from(torch.from_numpy(pieces), F.normalize(means, dim=1))
    identity = torch.eye(model.config.d_model)
    for layer in model.decoder:
        assert isinstance(layer, DecoderLayer)
        layer.cross_attention.kv.weight[model.config.d_model :] = identity
        layer.cross_attention.out.weight.copy_(identity)
    return {"pieces": len(data.src_tokenizer), "covered": len(pieces)}

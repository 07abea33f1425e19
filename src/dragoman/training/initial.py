"""Initial weights: from a trained model, from word vectors, or from a lexicon."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.config import Config
from dragoman.data.datamodule import TranslationData
from dragoman.data.store import Ragged
from dragoman.errors import UserError
from dragoman.explain.vectors import start_from_vectors
from dragoman.export import huggingface
from dragoman.model.transformer import IMPOSSIBLE, DecoderLayer, Transformer
from dragoman.special import EOS, PAD
from dragoman.training.module import TranslationModule

# Limits of time and memory; beyond them the lexicon gains few words.
_MAX_PAIRS, _MAX_LINKS, _N_ITERATIONS = 50_000, 30_000_000, 5
_MIN_PROBABILITY = 0.02  # less probable translations are noise


def adapted(config: Config) -> Config:
    """Take vocabulary and model settings from `init_from`, if set, but not dropouts."""
    if config.init_from is None:
        return config
    info = huggingface.load(Path(config.init_from))
    if not set(config.data.every_direction) <= set(info.directions):
        theirs, ours = (" and ".join(map(str, each)) for each in (info.directions, config.data.every_direction))
        hint = "Change data.src and data.tgt, or data.directions"
        raise UserError(f"init_from={config.init_from}: translates {theirs}, but data has {ours}. {hint}")
    models = list(dict.fromkeys(str(each.path) for each in (info.src_tokenizer, info.tgt_tokenizer)))
    vocabulary = "joint" if len(models) == 1 else "separate"
    tokenizer = dataclasses.replace(config.data.tokenizer, models=models, vocabulary=vocabulary)
    dropouts = {name: getattr(config.model, name) for name in ("dropout", "activation_dropout", "attention_dropout")}
    model = dataclasses.replace(info.model_config, **dropouts)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, tokenizer=tokenizer), model=model)


def output_bias(data: TranslationData) -> Tensor:
    """Return (V,) 0 for each piece that translations can have, else IMPOSSIBLE.

    In a joint vocabulary many pieces occur in sources only; leaving them out makes the softmax faster. Special ids and
    bytes stay possible; with both directions or subword sampling, all pieces do.
    """
    tokenizer, ids = data.tgt_tokenizer, data.train_ids
    if len(data.directions) > 1 or data.config.tokenizer.sampling:
        return torch.zeros(len(tokenizer))
    is_target = np.repeat(np.arange(len(ids)) % 2 == 1, np.diff(ids.offsets))
    seen = [ids.values[is_target], *tokenizer.encode_batch([pair.tgt for pair in data.validation])]
    in_bytes = [i for i, piece in enumerate(tokenizer.pieces(range(len(tokenizer)))) if piece.startswith("<0x")]
    possible = [*range(EOS + 1), *in_bytes, *np.unique(np.concatenate(seen)).tolist()]
    return torch.full((len(tokenizer),), IMPOSSIBLE).index_fill_(0, torch.tensor(possible), 0.0)


def set_initial_weights(config: Config, data: TranslationData, module: TranslationModule) -> dict[str, Any]:
    """Take weights from `init_from` or model.embedding.init; return metrics."""
    init, model = config.model.embedding.init, module.model
    if config.init_from is not None:
        weights = huggingface.load(Path(config.init_from)).model.state_dict()
        # A piece stays possible if either model could produce it.
        torch.maximum(weights["projection.bias"], model.projection.bias, out=weights["projection.bias"])
        model.load_state_dict(weights)
        module.eval_model.load_state_dict(weights)
    elif init == "lexicon":
        return {"vectors": start_from_lexicon(model, data)}
    elif init is not None:
        return {"vectors": start_from_vectors(model, Path(init), data.src_tokenizer, data.tgt_tokenizer)}
    return {}


@torch.no_grad()
def start_from_lexicon(model: Transformer, data: TranslationData) -> dict[str, int]:
    """Initialise the vectors of source pieces by those of their translations.

    The vector of a piece is the weighted mean of the vectors of its translations. The value and output projections of
    cross-attention become identity matrices. With tied embeddings, a decoder that attends to a source piece then
    predicts its translations before any training. Returns {"pieces": size of the vocabulary, "covered": initialised}.
    """
    joint = data.src_tokenizer.sha256 == data.tgt_tokenizer.sha256
    src, tgt, weights = lexicon(data.train_ids, tgt_size=len(data.tgt_tokenizer), joint=joint)
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


def lexicon(ids: Ragged, *, tgt_size: int, joint: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return source pieces (n,), target pieces (n,) and their weights (n,).

    IBM Model 1 (Brown et al. 1993): each target piece of a pair translates one of its source pieces, or none.
    Expectation maximisation over the ids of a sample of pairs estimates t(target | source).

    Row 2i of `ids` is the source of pair i, row 2i + 1 its target; `tgt_size` is that of the vocabulary. The weight
    is t * log(t / p), where p is the frequency of the target piece. It is small for a piece that occurs beside every
    source piece ("the"). In a joint vocabulary, a piece has an entry only if it is more than twice as frequent in
    sources as in targets: digits and punctuation have none.
    """
    n_pairs = len(ids) // 2
    pairs = np.random.default_rng(1).choice(n_pairs, min(n_pairs, _MAX_PAIRS), replace=False)
    lengths = np.diff(ids.offsets)
    total = np.cumsum((lengths[2 * pairs] + 1) * lengths[2 * pairs + 1])  # links of the first pairs
    pairs = np.sort(pairs[total <= max(_MAX_LINKS, total[0])])
    n_src, n_tgt = lengths[2 * pairs], lengths[2 * pairs + 1]
    src, tgt = (np.concatenate([ids[row] for row in 2 * pairs + side]) for side in (0, 1))
    # Each target piece of a pair is linked to each of its source pieces and to PAD, which stands for Model 1's NULL
    # word. `positions` are indices into all targets, concatenated.
    pieces = np.insert(src.astype(np.int64), np.cumsum(n_src), PAD)
    first, n_links = np.repeat(np.cumsum(n_tgt) - n_tgt, n_src + 1), np.repeat(n_tgt, n_src + 1)
    shifts = first - np.cumsum(n_links) + n_links  # position of a link's target - number of the link
    sources, positions = np.repeat(pieces, n_links), np.arange(n_links.sum()) + np.repeat(shifts, n_links)
    keys, entries = np.unique(sources * tgt_size + tgt[positions], return_inverse=True)
    sources, targets = np.divmod(keys, tgt_size)
    t = np.ones(len(keys))
    for _ in range(_N_ITERATIONS):
        # Expectation: the probability of each link.
        links = t[entries]
        links /= np.bincount(positions, links)[positions]
        # Maximisation: the relative frequencies of the expected counts.
        counts = np.bincount(entries, links)
        t = counts / np.bincount(sources, counts)[sources]
    in_src, in_tgt = np.bincount(src), np.bincount(tgt, minlength=tgt_size)
    weights = t * np.log(np.maximum(t * len(tgt) / in_tgt[targets], 1))
    keep = (t >= _MIN_PROBABILITY) & (weights > 0) & (sources != PAD)
    if joint:
        keep &= in_src[sources] > 2 * in_tgt[sources]
    return sources[keep], targets[keep], weights[keep]

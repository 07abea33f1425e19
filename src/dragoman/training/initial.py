"""Initial weights from the lexicon of the training pairs."""

import numpy as np
import torch
from torch.nn import functional as F

from dragoman.data.datamodule import TranslationData
from dragoman.data.lexicon import lexicon
from dragoman.model.layers import DecoderLayer
from dragoman.model.transformer import Transformer


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

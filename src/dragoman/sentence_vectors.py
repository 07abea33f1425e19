"""Lines of ids -> one vector for each line, from the encoder alone.

It knows batches, the encoder and how the vectors of a line's sentences become one: their mean, each sentence
counted as often as it has tokens, so that for the masked mean a line's vector is the mean over all of its
tokens. It refuses to know text and how a line is cut into sentences (translator.py), and how tokens become a
vector (model/pooling.py). Nothing is decoded: this costs about as much as reading a sentence.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.errors import UserError, suggest
from dragoman.masks import key_padding_mask
from dragoman.model.pooling import POOLINGS
from dragoman.model.transformer import Transformer
from dragoman.special import EOS, PAD

Line = Sequence[Sequence[int]]  # the ids of each of its sentences, EOS not among them; perhaps no sentence


def line_vectors(
    model: Transformer, lines: Sequence[Line], pooling: str, *, batch_tokens: int = 4096
) -> Tensor:
    """(N, D) float32 on the CPU, in the order of `lines`; a line without sentences is zeros.

    `batch_tokens` bounds sentences x longest sentence read at once; it changes no vector but in its rounding.
    Expects a model in eval mode. Raises UserError for a `pooling` that is not one of POOLINGS.
    """
    if pooling not in POOLINGS:
        raise UserError(
            f"there is no pooling '{pooling}'; choose one of {', '.join(POOLINGS)}{suggest(pooling, POOLINGS)}"
        )
    sentences = [[*ids, EOS] for line in lines for ids in line]
    owners = torch.tensor([n for n, line in enumerate(lines) for _ in line], dtype=torch.long)
    sizes = torch.tensor([len(ids) for ids in sentences], dtype=torch.float32)
    weighed = _pooled(model, sentences, pooling, batch_tokens) * sizes[:, None]
    sums = torch.zeros(len(lines), weighed.size(1)).index_add_(0, owners, weighed)
    counts = torch.zeros(len(lines)).index_add_(0, owners, sizes)
    return sums / counts.clamp(min=1)[:, None]


@torch.inference_mode()
def _pooled(model: Transformer, sentences: list[list[int]], pooling: str, batch_tokens: int) -> Tensor:
    """(number of sentences, D), in order; longest first, so that neighbours in a batch are about as long."""
    device = next(model.parameters()).device
    vectors = torch.zeros(len(sentences), model.config.d_model)
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]), reverse=True)
    while order:
        longest = len(sentences[order[0]])
        rows = max(1, batch_tokens // longest)
        batch, order = order[:rows], order[rows:]
        src = torch.tensor([sentences[i] + [PAD] * (longest - len(sentences[i])) for i in batch]).to(device)
        padding = key_padding_mask(src)
        vectors[batch] = POOLINGS[pooling](model.encode(src, padding), padding).float().cpu()
    return vectors

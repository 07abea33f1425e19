"""Where a model looked, with a name on every row and column: attention_map, and the pieces of both sides.

Between ids and pictures: it knows which pieces belong to which axis of which map, so that no picture has to. It
refuses to know text, and how maps are drawn (picture.py, page.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.attention_map import attention_map
from dragoman.data.tokenizer import Tokenizer
from dragoman.model.transformer import Transformer
from dragoman.special import BOS, EOS


@dataclass(frozen=True)
class Attended:
    """All weights of one pair, `maps` as attention_map gives them, and the pieces on their axes.

    pieces: "src" (S) as the encoder reads them, "tgt_in" (T) as the decoder reads them, "tgt_out" (T) as it
    writes them: query t of "decoder" and of "cross" is the one that writes tgt_out[t].
    """

    maps: dict[str, Tensor]
    pieces: dict[str, list[str]]


def attended(
    model: Transformer, tokenizers: tuple[Tokenizer, Tokenizer], src: Sequence[int], tgt: Sequence[int]
) -> Attended:
    """Of the ids of a source and a target without BOS and EOS; `tokenizers` are the source's and the target's."""
    read, written = [*src, EOS], [BOS, *tgt, EOS]
    src_tokenizer, tgt_tokenizer = tokenizers
    names = tgt_tokenizer.pieces(written)
    return Attended(
        maps=attention_map(model, torch.tensor([read]), torch.tensor([written[:-1]])),
        pieces={"src": src_tokenizer.pieces(read), "tgt_in": names[:-1], "tgt_out": names[1:]},
    )

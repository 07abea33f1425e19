"""Attention weights of every layer and head for one sentence pair.

torch's fused attention does not return its weights. During one teacher-forced pass, a hook on each `Attention` layer
therefore calls the layer's method `weights` with the same arguments. The model stays unchanged.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dragoman.data.tokenizer import Tokenizer
from dragoman.masks import key_padding_mask
from dragoman.model.attention import Attention
from dragoman.model.transformer import Transformer
from dragoman.special import BOS, EOS


@dataclass(frozen=True)
class Attended:
    """Attention maps of one sentence pair, with their pieces and logits.

    Sizes: L layers, H heads, S source pieces with <EOS>, T target pieces with <BOS> or <EOS>, V the target vocabulary.
    maps: "encoder" (L, H, S, S), "decoder" (L, H, T, T) and "cross" (L, H, T, S). Rows are queries and sum to 1.
    pieces: "src" (S) encoder input, "tgt_in" (T) decoder input, "tgt_out" (T) decoder output.
    logits: (T, V). Row t of "decoder", "cross" and the logits belongs to the prediction of tgt_out[t].
    All tensors are float32 on the CPU.
    """

    maps: dict[str, Tensor]
    pieces: dict[str, list[str]]
    logits: Tensor


@torch.no_grad()
def attended(
    model: Transformer, tokenizers: tuple[Tokenizer, Tokenizer], src: Sequence[int], tgt: Sequence[int]
) -> Attended:
    """Return the attention of one pair in evaluation mode.

    `src` and `tgt` are ids without <BOS> and <EOS>; `tokenizers` are those of source and target.
    """
    weights: dict[str, list[Tensor]] = {"encoder": [], "decoder": [], "cross": []}

    def record(name: str, attention: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        weights[name].append(attention.weights(*args, **kwargs)[0].float().cpu())

    attentions: list[tuple[str, Any]] = [("encoder", layer.self_attention) for layer in model.encoder]
    for layer in model.decoder:
        attentions += [("decoder", layer.self_attention), ("cross", layer.cross_attention)]
    src_in, tgt_all = [*src, EOS], [BOS, *tgt, EOS]
    device = model.projection.weight.device
    ids = torch.tensor([src_in], device=device)
    # In bf16 the rows would not sum to 1.
    with torch.autocast(device.type, enabled=False), ExitStack() as stack:
        stack.callback(model.train, model.training)
        for name, layer in attentions:
            stack.enter_context(layer.register_forward_pre_hook(partial(record, name), with_kwargs=True))
        logits = model.eval()(ids, torch.tensor([tgt_all[:-1]], device=device), key_padding_mask(ids))
    maps = {name: torch.stack(layers) for name, layers in weights.items()}
    src_pieces, tgt_pieces = tokenizers[0].pieces(src_in), tokenizers[1].pieces(tgt_all)
    pieces = {"src": src_pieces, "tgt_in": tgt_pieces[:-1], "tgt_out": tgt_pieces[1:]}
    return Attended(maps, pieces, logits[0].float().cpu())

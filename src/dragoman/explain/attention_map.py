"""Attention weights of every layer and head for one sentence pair.

SDPA never stores the weights. Hooks run `Attention.weights` on the arguments of every `Attention` during one
teacher-forced pass. The model stays unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from dragoman.data.tokenizer import Tokenizer
from dragoman.masks import key_padding_mask
from dragoman.model.attention import Attention
from dragoman.model.transformer import Transformer
from dragoman.special import BOS, EOS


@dataclass(frozen=True)
class Attended:
    """Attention maps of one pair (attention_maps), pieces of the axes, and logits.

    pieces: "src" (S) encoder input, "tgt_in" (T) decoder input, "tgt_out" (T) decoder output. Query t of "decoder"
    and "cross" predicts tgt_out[t] by row t of the logits (T, V).
    """

    maps: dict[str, Tensor]
    pieces: dict[str, list[str]]
    logits: Tensor


def attended(
    model: Transformer, tokenizers: tuple[Tokenizer, Tokenizer], src: Sequence[int], tgt: Sequence[int]
) -> Attended:
    """Return maps and pieces of source and target ids, given without BOS and EOS."""
    src_in, tgt_all = [*src, EOS], [BOS, *tgt, EOS]
    maps, logits = _forward(model, torch.tensor([src_in]), torch.tensor([tgt_all[:-1]]))
    src_pieces, tgt_pieces = tokenizers[0].pieces(src_in), tokenizers[1].pieces(tgt_all)
    return Attended(maps, {"src": src_pieces, "tgt_in": tgt_pieces[:-1], "tgt_out": tgt_pieces[1:]}, logits)


def attention_maps(model: Transformer, src: Tensor, tgt_in: Tensor) -> dict[str, Tensor]:
    """Return the weights of one pair, src (1, S) and tgt_in (1, T), without dropout.

    src ends in EOS, tgt_in begins with BOS. The keys are "encoder" (L, H, S, S), "decoder" (L, H, T, T) and "cross"
    (L, H, T, S), float32 on the CPU; each row is a query and sums to 1.
    """
    return _forward(model, src, tgt_in)[0]


@torch.no_grad()
def _forward(model: Transformer, src: Tensor, tgt_in: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return the maps and the logits (T, V)."""
    stacks: dict[str, list[Any]] = {
        "encoder": [layer.self_attention for layer in model.encoder],
        "decoder": [layer.self_attention for layer in model.decoder],
        "cross": [layer.cross_attention for layer in model.decoder],
    }
    weights: dict[nn.Module, Tensor] = {}

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        weights[module] = cast(Attention, module).weights(*args, **kwargs)[0].float().cpu()

    modes = [(module, module.training) for module in model.modules()]
    attentions = [attention for stack in stacks.values() for attention in stack]
    hooks = [attention.register_forward_pre_hook(record, with_kwargs=True) for attention in attentions]
    src, tgt_in = (ids.to(model.projection.weight.device) for ids in (src, tgt_in))
    try:
        model.eval()
        # In bf16 the rows would not sum to 1.
        with torch.autocast(src.device.type, enabled=False):
            logits = model(src, tgt_in, key_padding_mask(src))[0].float().cpu()
    finally:
        for hook in hooks:
            hook.remove()
        # `model.train()` would also change parts in evaluation mode.
        for module, training in modes:
            module.training = training
    return {name: torch.stack([weights[each] for each in stack]) for name, stack in stacks.items()}, logits

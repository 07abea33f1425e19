"""Where every head looks: (model, src, tgt) -> attention weights per layer and head.

The fast path of attention never forms its weights, and it stays that way: this module listens to the inputs
of each `Attention` during one ordinary teacher-forced pass and asks the same module for the `weights` of the
same arguments. It knows nothing of text or pictures (see picture.py), and leaves no trace on the model.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from dragoman.masks import key_padding_mask
from dragoman.model.attention import Attention
from dragoman.model.transformer import Transformer


@torch.no_grad()
def attention_map(model: Transformer, src: Tensor, tgt: Tensor) -> dict[str, Tensor]:
    """The weights of one pair, without dropout: src (1, S) ends in EOS, tgt (1, T) begins with BOS.

    Returns "encoder" (L, H, S, S), "decoder" (L, H, T, T) and "cross" (L, H, T, S), float32 on the CPU; each
    row is a query and sums to 1. Raises ValueError for more than one pair.
    """
    if src.dim() != 2 or tgt.dim() != 2 or src.size(0) != 1 or tgt.size(0) != 1:
        raise ValueError(
            f"attention_map takes one pair, (1, S) and (1, T); got {tuple(src.shape)}, {tuple(tgt.shape)}"
        )
    device = next(model.parameters()).device
    src, tgt = src.to(device), tgt.to(device)
    layers = {
        "encoder": [cast(Attention, layer.self_attention) for layer in model.encoder],
        "decoder": [cast(Attention, layer.self_attention) for layer in model.decoder],
        "cross": [cast(Attention, layer.cross_attention) for layer in model.decoder],
    }
    attentions = [attention for stack in layers.values() for attention in stack]
    with (
        _at_rest(model),
        _listening(attentions) as heard,
        torch.autocast(device.type, enabled=False),  # inside a mixed-precision step too, rows shall sum to 1
    ):
        model(src, tgt, key_padding_mask(src))
    return {name: torch.stack([heard[attention] for attention in stack]) for name, stack in layers.items()}


@contextmanager
def _listening(attentions: Sequence[Attention]) -> Iterator[dict[nn.Module, Tensor]]:
    """Fills the yielded dictionary with the (H, T_q, T_k) weights of each module as it is called."""
    heard: dict[nn.Module, Tensor] = {}

    def listen(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        heard[module] = cast(Attention, module).weights(*args, **kwargs)[0].float().cpu()

    hooks = [attention.register_forward_pre_hook(listen, with_kwargs=True) for attention in attentions]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, then each module's own mode again: `model.train()` would wake frozen parts."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training

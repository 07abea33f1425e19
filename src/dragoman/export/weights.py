"""Weights in the names and the order of Marian and Pegasus, both ways.

Pegasus (pre-norm) and Marian (post-norm) compute the same function as a Transformer with sinusoids. They put all sines
before all cosines; here sines and cosines alternate. The components of the residual stream are reordered, and so is the
axis of each matrix that reads or writes it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.errors import UserError
from dragoman.model.attention import Attention
from dragoman.model.transformer import Transformer

# The axis of a matrix that the residual stream has: its input, or its output.
_READS, _WRITES = 1, 0
_SUBLAYERS = {"encoder": ("self_attn", "final"), "decoder": ("self_attn", "encoder_attn", "final")}


def unsupported(config: ModelConfig) -> str | None:
    """Return the first setting that neither Marian nor Pegasus supports, or None."""
    supported = {
        f"model.score={config.score}": config.score == "scaled_dot",
        f"model.position.kind={config.position.kind}": config.position.kind == "sinusoidal",
        f"model.position.base={config.position.base}": config.position.base == 10_000,
        f"model.activation={config.activation}": config.activation in ("relu", "gelu"),
        f"model.normalization={config.normalization}": config.normalization == "layer_norm",
        f"model.tie={config.tie}": config.tie in (("all",) if config.norm == "pre" else ("all", "tgt")),
    }
    return next((setting for setting in supported if not supported[setting]), None)


@torch.no_grad()
def state_dict(model: Transformer) -> dict[str, Tensor]:
    """Return the weights with the names and the order of Marian and Pegasus."""
    order = _order(model.config.d_model)
    return {name: ours if axis is None else ours.index_select(axis, order) for name, ours, axis in _tensors(model)}


@torch.no_grad()
def load_state_dict(model: Transformer, tensors: Mapping[str, Tensor], where: object) -> None:
    """Fill the model with the weights of `state_dict`, read from the file `where`."""
    order = _order(model.config.d_model).argsort()
    for name, ours, axis in _tensors(model):
        if name not in tensors or tensors[name].shape != ours.shape:
            raise UserError(f"{where}: {name} is missing or has another shape. Export the model again")
        ours.copy_(tensors[name] if axis is None else tensors[name].index_select(axis, order))


def _order(d_model: int) -> Tensor:
    return torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))


def _tensors(model: Transformer) -> Iterator[tuple[str, Tensor, int | None]]:
    """Yield the exported name, the tensor of the model, and its residual axis or None."""
    for root, weight, bias, axis in _parts(model):
        yield f"{root}.weight", weight, axis
        if bias is not None:
            yield f"{root}.bias", bias, None if axis == _READS else _WRITES


def _parts(model: Any) -> Iterator[tuple[str, Tensor, Tensor | None, int]]:
    if model.config.tie == "all":
        yield "model.shared", model.src_embedding.table.weight, None, _READS
    else:
        yield "model.encoder.embed_tokens", model.src_embedding.table.weight, None, _READS
        yield "model.decoder.embed_tokens", model.tgt_embedding.table.weight, None, _READS
    for side, last_norm in (("encoder", model.encoder_norm), ("decoder", model.decoder_norm)):
        for number, layer in enumerate(getattr(model, side)):
            root = f"model.{side}.layers.{number}"
            yield from _attention(f"{root}.self_attn", layer.self_attention)
            if side == "decoder":
                yield from _attention(f"{root}.encoder_attn", layer.cross_attention)
            up, down = layer.feed_forward.up, layer.feed_forward.down
            yield f"{root}.fc1", up.weight, up.bias, _READS
            yield f"{root}.fc2", down.weight, down.bias, _WRITES
            for sublayer, residual in zip(_SUBLAYERS[side], layer.residuals, strict=True):
                yield f"{root}.{sublayer}_layer_norm", residual.norm.weight, residual.norm.bias, _WRITES
        if model.config.norm == "pre":
            yield f"model.{side}.layer_norm", last_norm.weight, last_norm.bias, _WRITES


def _attention(root: str, attention: Attention) -> Iterator[tuple[str, Tensor, Tensor | None, int]]:
    yield f"{root}.q_proj", attention.q.weight, attention.q.bias, _READS
    for name, weight, bias in zip("kv", attention.kv.weight.chunk(2), attention.kv.bias.chunk(2), strict=True):
        yield f"{root}.{name}_proj", weight, bias, _READS
    yield f"{root}.out_proj", attention.out.weight, attention.out.bias, _WRITES

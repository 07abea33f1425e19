"""Weights in the names and the order of Marian and Pegasus, both ways.

Pegasus (pre-norm) and Marian (post-norm) compute the same function as a Transformer with sinusoids. They put all sines
before all cosines; here sines and cosines alternate. The components of the residual stream are reordered, and so is the
axis of each matrix that reads or writes it.
"""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.errors import UserError
from dragoman.model.transformer import Transformer

# The axis of a weight that the residual stream has: its input, or its output.
_READS, _WRITES = 1, 0


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
    for root, module, axis in _modules(model):
        yield f"{root}.weight", module.weight, axis
        if hasattr(module, "bias"):
            yield f"{root}.bias", module.bias, None if axis == _READS else _WRITES


def _modules(model: Any) -> Iterator[tuple[str, Any, int]]:
    """Yield the exported name, the module, and the residual axis of its weight."""
    if model.config.tie == "all":
        yield "model.shared", model.src_embedding.table, _READS
    else:
        yield "model.encoder.embed_tokens", model.src_embedding.table, _READS
        yield "model.decoder.embed_tokens", model.tgt_embedding.table, _READS
    for side, last_norm in (("encoder", model.encoder_norm), ("decoder", model.decoder_norm)):
        for number, layer in enumerate(getattr(model, side)):
            root = f"model.{side}.layers.{number}"
            attentions = {"self_attn": layer.self_attention}
            if side == "decoder":
                attentions["encoder_attn"] = layer.cross_attention
            for name, attention in attentions.items():
                yield f"{root}.{name}.q_proj", attention.q, _READS
                halves = zip(attention.kv.weight.chunk(2), attention.kv.bias.chunk(2), strict=True)
                for letter, (weight, bias) in zip("kv", halves, strict=True):
                    yield f"{root}.{name}.{letter}_proj", SimpleNamespace(weight=weight, bias=bias), _READS
                yield f"{root}.{name}.out_proj", attention.out, _WRITES
            yield f"{root}.fc1", layer.feed_forward.up, _READS
            yield f"{root}.fc2", layer.feed_forward.down, _WRITES
            for name, residual in zip((*attentions, "final"), layer.residuals, strict=True):
                yield f"{root}.{name}_layer_norm", residual.norm, _WRITES
        if model.config.norm == "pre":
            yield f"model.{side}.layer_norm", last_norm, _WRITES

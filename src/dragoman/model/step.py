"""One more token: the decoder as `Transformer.decode` computes it from a cache, written out for rows of one token.

A step is small. For few rows a processor is busier with calling modules and making views than with products, so
nothing stands between these here: weights are looked up once, positions are embedded many at a time, each product
adds its bias, and each key goes to its place in one copy. What is special about a scheme of positions or a score it
asks the model's own modules for, and it knows nothing about searches, nor when a sentence ends.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.masks import padding_attn_mask
from dragoman.model.attention import Attention, Dot
from dragoman.model.cache import DecoderCache, KeyValues
from dragoman.model.embedding import Projection
from dragoman.model.layers import DecoderLayer, Residual
from dragoman.model.position import Position
from dragoman.model.transformer import Transformer

_PLACES = 64  # whose positions are embedded at a time


class Step:
    """(tokens (N, 1), cache) -> (logits (N, V), cache), which has one token more.

    For a model at rest, without gradients. Under autocast the weights are cast when it is made, once.
    """

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._layers = [_Layer(cast(DecoderLayer, layer)) for layer in model.decoder]
        self._project = _projection(model.projection)
        self._places: Tensor | None = None  # (_PLACES, D): positions from a multiple of _PLACES on

    def __call__(self, tokens: Tensor, cache: DecoderCache) -> tuple[Tensor, DecoderCache]:
        model, at = self._model, cache.length
        if self._places is None or at % _PLACES == 0:
            self._places = self._embedded(at)
        x = model.tgt_embedding(tokens[:, 0]) + self._places[at % _PLACES]  # (N, D)
        attn_mask = padding_attn_mask(cache.memory_key_padding_mask)
        for layer, own, cross in zip(self._layers, cache.own, cache.cross, strict=True):
            x = layer(x, cache.memory, attn_mask, own, cross)
        return self._project(model.decoder_norm(x)), cache

    def _embedded(self, start: int) -> Tensor:
        """What every scheme that embeds positions adds to the words at `start` and after."""
        end = min(start + _PLACES, self._model.max_positions or start + _PLACES)
        weight = self._model.tgt_embedding.table.weight
        nothing = weight.new_zeros(1, end - start, weight.size(1))
        return self._model.decoder_position.embed(nothing, torch.arange(start, end, device=weight.device))[0]


class _Layer:
    def __init__(self, layer: DecoderLayer) -> None:
        self._own, self._cross = layer.self_attention, layer.cross_attention
        self._around = [_around(cast(Residual, residual)) for residual in layer.residuals]
        self._own_q, self._own_kv, self._own_out = map(_product, (self._own.q, self._own.kv, self._own.out))
        self._cross_q, self._cross_out = map(_product, (self._cross.q, self._cross.out))
        feed_forward = layer.feed_forward
        self._activation = feed_forward.activation
        self._up, self._down = _product(feed_forward.up), _product(feed_forward.down)
        self._gate = None if feed_forward.gate is None else _product(feed_forward.gate)

    def __call__(
        self, x: Tensor, memory: Tensor, attn_mask: Tensor | None, own: KeyValues, cross: KeyValues
    ) -> Tensor:
        first, second, third = self._around
        x = first(x, lambda y: self._look_back(y, own))
        x = second(x, lambda y: self._look_at_source(y, memory, attn_mask, cross))
        return third(x, self._think)

    def _look_back(self, x: Tensor, own: KeyValues) -> Tensor:
        attention, position = self._own, cast(Position, self._own.position)
        n_rows, at = x.size(0), own.length
        q = self._own_q(x).view(n_rows, attention.n_heads, 1, attention.d_head)
        kv = self._own_kv(x).view(n_rows, 2, attention.n_heads, attention.d_head)
        bias = None
        if type(position).rotate is not Position.rotate:
            places = torch.arange(at, at + 1, device=x.device)
            q = position.rotate(q, places)
            kv = torch.stack((position.rotate(kv[:, 0, :, None], places)[:, :, 0], kv[:, 1]), dim=1)
        k, v = own.append_one(kv)
        if type(position).bias is not Position.bias:
            places = torch.arange(at + 1, device=x.device)
            bias = position.bias(q, k, places[at:], places)
        return self._own_out(_mixed(attention, q, k, v, bias, None).reshape(n_rows, -1))

    def _look_at_source(
        self, x: Tensor, memory: Tensor, attn_mask: Tensor | None, cross: KeyValues
    ) -> Tensor:
        attention, n_rows = self._cross, x.size(0)
        if not cross.length:
            kv = attention.kv(memory).view(*memory.shape[:2], 2, attention.n_heads, attention.d_head)
            cross.append(*kv.permute(2, 0, 3, 1, 4))
        k, v = cross.kept()
        # Several rows of one sentence ask as one row of several queries: its keys are read once for all.
        q = self._cross_q(x).view(k.size(0), -1, attention.n_heads, attention.d_head).transpose(1, 2)
        mixed = _mixed(attention, q, k, v, None, attn_mask)  # (B, H, N / B, d)
        return self._cross_out(mixed.transpose(1, 2).reshape(n_rows, -1))

    def _think(self, x: Tensor) -> Tensor:
        up = self._up(x)
        return self._down(
            self._activation(up) if self._gate is None else self._activation(self._gate(x)) * up
        )


def _mixed(
    attention: Attention, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, attn_mask: Tensor | None
) -> Tensor:
    if bias is None and isinstance(attention.score, Dot):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, scale=attention.score.scale)
    return attention.attend(q, k, v, bias, attn_mask)


def _product(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
    """`linear` of rows (N, K), its weight turned once."""
    weight, bias = linear.weight.detach().t(), linear.bias.detach()
    if torch.is_autocast_enabled(weight.device.type):
        dtype = torch.get_autocast_dtype(weight.device.type)
        weight, bias = weight.to(dtype), bias.to(dtype)
    return lambda x: torch.addmm(bias, x, weight)


def _projection(projection: Projection) -> Callable[[Tensor], Tensor]:
    """`projection`, its weight cast once where it would be cast at each step."""
    device = projection.weight.device.type
    if not torch.is_autocast_enabled(device):
        return projection
    weight = projection.weight.detach().to(torch.get_autocast_dtype(device))
    return lambda x: F.linear(x, weight)


def _around(residual: Residual) -> Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]:
    norm = _norm(residual.norm)
    if residual.pre:
        return lambda x, sublayer: x + sublayer(norm(x))
    return lambda x, sublayer: norm(x + sublayer(x))


def _norm(module: nn.Module) -> Callable[[Tensor], Tensor]:
    if not isinstance(module, nn.LayerNorm):
        return module
    shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)

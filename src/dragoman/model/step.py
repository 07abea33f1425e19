"""One more token: the decoder as `Transformer.decode` computes it for all words at once, written out for one a row.

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

from dragoman.masks import key_padding_mask
from dragoman.model.attention import Attention, Dot
from dragoman.model.cache import DecoderCache, KeyValues, to_device
from dragoman.model.embedding import Projection
from dragoman.model.layers import DecoderLayer, Residual
from dragoman.model.position import Position
from dragoman.model.transformer import Transformer


class Step:
    """(tokens (N, 1), cache) -> logits (N, V), and the cache has one token more.

    For a model at rest, without gradients. Under autocast the weights are cast when it is made, once.
    """

    def __init__(self, model: Transformer) -> None:
        self._model, self.device = model, model.projection.weight.device
        self._layers = [_Layer(cast(DecoderLayer, layer)) for layer in model.decoder]
        self._project = _projection(model.projection)
        self._places = self._embedded(64)

    def begin(self, src: Tensor) -> DecoderCache:
        """src (B, S) ids on the CPU, padded at the right -> a cache of B rows that have no token yet."""
        padding = key_padding_mask(src)
        lengths = (~padding).sum(1)
        padded = to_device(padding, self.device) if bool(padding.any()) else None
        memory = self._model.encode(to_device(src, self.device), padded)
        cross = [layer.source_keys(memory) for layer in self._layers]
        own = [KeyValues(keys.room_for(len(src), 0), 0) for keys in cross]
        return DecoderCache(own, cross, lengths)

    def __call__(self, tokens: Tensor, cache: DecoderCache) -> Tensor:
        model, positions, mask = self._model, cache.positions(), cache.own_mask()
        if cache.length == len(self._places):
            self._places = self._embedded(2 * cache.length)
        tokens = to_device(tokens[:, 0], self.device)
        x = model.tgt_embedding(tokens) + self._places[positions.flatten()]  # (N, D)
        for layer, own, cross in zip(self._layers, cache.own, cache.cross, strict=True):
            x = layer(x, positions, mask, own, cache.source_mask, cross)
        return self._project(model.decoder_norm(x))

    def _embedded(self, end: int) -> Tensor:
        """What a scheme that embeds positions adds to the words at the first of them, (T, D)."""
        end = min(end, self._model.max_positions or end)
        weight = self._model.tgt_embedding.table.weight
        nothing = weight.new_zeros(1, end, weight.size(1))
        return self._model.decoder_position.embed(nothing, torch.arange(end, device=weight.device))[0]


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
        self,
        x: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        own: KeyValues,
        source_mask: Tensor | None,
        cross: KeyValues,
    ) -> Tensor:
        first, second, third = self._around
        x = first(x, lambda y: self._look_back(y, positions, mask, own))
        x = second(x, lambda y: self._look_at_source(y, source_mask, cross))
        return third(x, self._think)

    def source_keys(self, memory: Tensor) -> KeyValues:
        """Those of memory (B, S, D), which stay as they are."""
        attention = self._cross
        kv = attention.kv(memory).view(*memory.shape[:2], 2, attention.n_heads, attention.d_head)
        return KeyValues(kv.permute(2, 0, 3, 1, 4).contiguous(), memory.size(1))

    def _look_back(self, x: Tensor, positions: Tensor, mask: Tensor | None, own: KeyValues) -> Tensor:
        attention, position = self._own, cast(Position, self._own.position)
        n_rows, at = x.size(0), own.length
        q = self._own_q(x).view(n_rows, attention.n_heads, 1, attention.d_head)
        kv = self._own_kv(x).view(n_rows, 2, attention.n_heads, attention.d_head)
        bias = None
        if type(position).rotate is not Position.rotate:
            q = position.rotate(q, positions)
            k = position.rotate(kv[:, 0, :, None], positions)
            kv = torch.stack((k[:, :, 0], kv[:, 1]), dim=1)
        k, v = own.append(kv)
        if type(position).bias is not Position.bias:
            # Places, not positions: the distance between two of them is the same.
            places = torch.arange(at + 1, device=x.device)
            bias = position.bias(q, k, places[at:], places)
        return self._own_out(_mixed(attention, q, k, v, bias, mask).reshape(n_rows, -1))

    def _look_at_source(self, x: Tensor, source_mask: Tensor | None, cross: KeyValues) -> Tensor:
        attention, n_rows = self._cross, x.size(0)
        k, v = cross.kept()
        # Several rows of one sentence ask as one row of several queries: its keys are read once for all.
        q = self._cross_q(x).view(k.size(0), -1, attention.n_heads, attention.d_head).transpose(1, 2)
        mixed = _mixed(attention, q, k, v, None, source_mask)  # (B, H, N / B, d)
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

"""Encoder and decoder layers, and the Transformer of them (Vaswani et al. 2017)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config import ModelConfig
from dragoman.errors import choose
from dragoman.model.attention import Attention, padding_attn_mask
from dragoman.model.cache import DecoderCache, KeyValues
from dragoman.model.position import POSITIONS, Position
from dragoman.special import EOS, PAD

IMPOSSIBLE = -1e9  # added to a logit; finite, so that averages of weights stay finite
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "swiglu": F.silu}
# RMSNorm (Zhang & Sennrich 2019) leaves out LayerNorm's mean and bias.
NORMALIZATIONS: dict[str, Callable[..., nn.Module]] = {"layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm}


class Embedding(nn.Module):
    """ids (B, T) -> (B, T, D): vectors times sqrt(D).

    Weights start with std 1/sqrt(D), as a tied projection needs; sqrt(D) gives the vectors the scale of the positions.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model, padding_idx=PAD)
        self.scale = math.sqrt(d_model)
        nn.init.normal_(self.table.weight, std=1 / self.scale)
        nn.init.zeros_(self.table.weight[PAD])

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids) * self.scale

    @torch.no_grad()
    def start_from(self, ids: Tensor, vectors: Tensor) -> None:
        """Set pieces `ids` (N,) to `vectors` (N, D), rescaled to the initial std."""
        std = vectors.double().square().mean().sqrt()
        self.table.weight[ids] = (vectors / (std * self.scale)).to(self.table.weight)


def normalization(config: ModelConfig) -> nn.Module:
    """Normalisation over the D components of each position."""
    return choose("model.normalization", config.normalization, NORMALIZATIONS)(config.d_model, eps=1e-5)


class Residual(nn.Module):
    """Add & Norm: norm(x + dropout(f(x))), "post"; or x + dropout(f(norm(x))), "pre"."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = normalization(config)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class FeedForward(nn.Module):
    """Position-wise feed-forward network; swiglu (Shazeer 2020) adds a gate."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = choose("model.activation", config.activation, ACTIVATIONS)
        self.up = nn.Linear(config.d_model, config.d_ff)
        self.gate = nn.Linear(config.d_model, config.d_ff) if config.activation == "swiglu" else None
        self.down = nn.Linear(config.d_ff, config.d_model)
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)  # (B, T, d_ff)
        hidden = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        return self.down(self.dropout(hidden))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig, position: Position) -> None:
        super().__init__()
        self.self_attention = Attention(config, position.layer())
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(self, x: Tensor, attn_mask: Tensor | None) -> Tensor:
        """x (B, S, D), attn_mask (B, 1, 1, S) True = may attend -> (B, S, D)."""
        x = self.residuals[0](x, lambda y: self.self_attention(y, y, attn_mask))
        return self.residuals[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the memory, then feed-forward."""

    def __init__(self, config: ModelConfig, position: Position) -> None:
        super().__init__()
        self.self_attention = Attention(config, position.layer())
        self.cross_attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(
        self, x: Tensor, memory: Tensor, memory_attn_mask: Tensor | None, cache: tuple[KeyValues, KeyValues] | None
    ) -> Tensor:
        """x (N, T, D), memory (B, S, D), memory_attn_mask (B, 1, 1, S) -> (N, T, D).

        Target padding needs no mask: it is at the right, where the causal mask hides it.
        """
        self_cache, cross_cache = (None, None) if cache is None else cache

        def cross_attention(y: Tensor) -> Tensor:
            # (N, T, D) -> (B, k * T, D): the k rows of a sentence become one, so its keys are read once.
            queries = y.reshape(memory.size(0), -1, y.size(2))
            return self.cross_attention(queries, memory, memory_attn_mask, cache=cross_cache).view_as(y)

        x = self.residuals[0](x, lambda y: self.self_attention(y, y, causal=True, cache=self_cache))
        x = self.residuals[1](x, cross_attention)
        return self.residuals[2](x, self.feed_forward)


class Transformer(nn.Module):
    """Encoder-decoder Transformer of the shape `config`."""

    def __init__(self, config: ModelConfig, *, src_vocab_size: int, tgt_vocab_size: int) -> None:
        super().__init__()
        self.config = config
        d_model, n_heads = config.d_model, config.n_heads
        scheme = choose("model.position.kind", config.position.kind, POSITIONS)
        self.max_positions = config.position.length if scheme.limited else None  # <BOS> or <EOS> included
        self.encoder_position = scheme(config.position, d_model=d_model, n_heads=n_heads, causal=False)
        self.decoder_position = scheme(config.position, d_model=d_model, n_heads=n_heads, causal=True)
        encoder = [EncoderLayer(config, self.encoder_position) for _ in range(config.n_encoder_layers)]
        decoder = [DecoderLayer(config, self.decoder_position) for _ in range(config.n_decoder_layers)]
        self.encoder, self.decoder = nn.ModuleList(encoder), nn.ModuleList(decoder)
        # Post-norm layers already end in a norm.
        self.encoder_norm = normalization(config) if config.norm == "pre" else nn.Identity()
        self.decoder_norm = normalization(config) if config.norm == "pre" else nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
        self.dropout = Dropout(config.dropout)
        self.src_embedding = Embedding(src_vocab_size, d_model)
        self.tgt_embedding = self.src_embedding if config.tie == "all" else Embedding(tgt_vocab_size, d_model)
        self.projection = nn.Linear(d_model, tgt_vocab_size, bias=False)  # states (..., D) -> logits (..., V)
        nn.init.normal_(self.projection.weight, std=d_model**-0.5)
        # 0, or IMPOSSIBLE for a piece that no translation can have (training/initial.py: output_bias)
        self.projection.bias = nn.Parameter(torch.zeros(tgt_vocab_size), requires_grad=False)
        if config.tie != "none":  # Press & Wolf 2017
            self.projection.weight = self.tgt_embedding.table.weight

    @property
    def possible(self) -> Tensor:
        """(n,) ids, ascending: the special ones, and pieces that a translation can have."""
        possible = self.projection.bias > IMPOSSIBLE
        possible[: EOS + 1] = True
        return possible.nonzero()[:, 0]

    def encode(self, src: Tensor, src_key_padding_mask: Tensor | None) -> Tensor:
        """src (B, S) ids, src_key_padding_mask (B, S) or None -> memory (B, S, D)."""
        positions = torch.arange(src.size(1), device=src.device)
        attn_mask = padding_attn_mask(src_key_padding_mask)
        x = self.dropout(self.encoder_position.embed_source(self.src_embedding(src), positions, src_key_padding_mask))
        for layer in self.encoder:
            x = layer(x, attn_mask)
        return self.encoder_norm(x)

    def decode(
        self, tgt: Tensor, memory: Tensor, memory_key_padding_mask: Tensor | None, *, cache: DecoderCache | None = None
    ) -> Tensor:
        """tgt (N, T) ids, memory (B, S, D), its padding mask (B, S) -> states (N, T, D).

        N is B * k: the k beams or samples of a sentence are in adjacent rows. `tgt` begins with <BOS>. With a
        cache, `tgt` holds only the tokens after those decoded so far; they are added to the cache.
        """
        past = 0 if cache is None else cache.length
        positions = torch.arange(past, past + tgt.size(1), device=tgt.device)
        attn_mask = padding_attn_mask(memory_key_padding_mask)
        x = self.dropout(self.decoder_position.embed(self.tgt_embedding(tgt), positions))
        caches = [None] * len(self.decoder) if cache is None else cache.layers
        for layer, layer_cache in zip(self.decoder, caches, strict=True):
            x = layer(x, memory, attn_mask, layer_cache)
        return self.decoder_norm(x)

    def begin(self, src: Tensor, src_key_padding_mask: Tensor | None) -> DecoderCache:
        """Encode src (B, S); return a cache with this memory and no tokens yet."""
        return DecoderCache(len(self.decoder), self.encode(src, src_key_padding_mask), src_key_padding_mask)

    def step(self, tokens: Tensor, cache: DecoderCache) -> Tensor:
        """Add tokens (N, 1) to the cache; return the logits (N, V) of the next ones."""
        tokens = tokens.to(cache.memory.device)
        states = self.decode(tokens, cache.memory, cache.memory_key_padding_mask, cache=cache)
        return self.projection(states[:, -1])

    def forward(self, src: Tensor, tgt_in: Tensor, src_key_padding_mask: Tensor | None) -> Tensor:
        """src (B, S), tgt_in (B, T) -> logits (B, T, V). Training uses decode()."""
        return self.projection(self.decode(tgt_in, self.encode(src, src_key_padding_mask), src_key_padding_mask))


class Dropout(nn.Module):
    """In training, zero elements with probability p; scale the rest by 1 / (1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            return _ByteDropout.apply(x, max(1, round(self.p * 256)))
        return F.dropout(x, self.p)


class _ByteDropout(torch.autograd.Function):
    """Dropout with fast masks on a CPU.

    torch draws one double per element on one thread. This function draws one byte per element, eight at a time, from
    torch's own seeded generator, so runs are reproducible. The probability is rounded to n/256 with n >= 1 (0.3
    becomes 77/256), and the scale uses the rounded value.
    """

    @staticmethod
    def forward(ctx, x: Tensor, dropped: int) -> Tensor:  # type: ignore[no-untyped-def]
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        # In NumPy and as bytes, because comparisons and boolean masks are far slower in torch.
        keep = torch.from_numpy(words.numpy().view("u1")[: x.numel()] >= dropped).view(torch.uint8).view(x.shape)
        ctx.save_for_backward(keep)
        ctx.scale = 256 / (256 - dropped)
        return (x * keep.to(x.dtype)).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        (keep,) = ctx.saved_tensors
        return (gradient * keep.to(gradient.dtype)).mul_(ctx.scale), None

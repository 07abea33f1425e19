"""Encoder-decoder Transformer (Vaswani et al. 2017)."""

import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.errors import choose
from dragoman.model.attention import padding_attn_mask
from dragoman.model.cache import DecoderCache
from dragoman.model.layers import DecoderLayer, Dropout, Embedding, EncoderLayer, normalization
from dragoman.model.position import POSITIONS
from dragoman.special import EOS

IMPOSSIBLE = -1e9  # added to a logit; finite, so that averages of weights stay finite


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

        N is B, or B * beam_size with the hypotheses of a sentence in adjacent rows. `tgt` begins with <BOS>. With a
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

    def step(self, tokens: Tensor, cache: DecoderCache) -> tuple[Tensor, DecoderCache]:
        """Add tokens (N, 1) to the cache; return logits (N, V) of the next, and the cache."""
        tokens = tokens.to(cache.memory.device)
        states = self.decode(tokens, cache.memory, cache.memory_key_padding_mask, cache=cache)
        return self.projection(states[:, -1]), cache

    def forward(self, src: Tensor, tgt_in: Tensor, src_key_padding_mask: Tensor | None) -> Tensor:
        """src (B, S), tgt_in (B, T) -> logits (B, T, V). Training uses decode()."""
        states = self.decode(tgt_in, self.encode(src, src_key_padding_mask), src_key_padding_mask)
        return self.projection(states)

"""The encoder-decoder Transformer as three verbs: encode, decode, forward.

Which of its choices other programs have a place for. To CTranslate2 4.8 models are carried by export/ctranslate2.py,
and tests/export compares the two for every `yes`; the column of Marian was read in the sources of transformers 5.23,
and no model has been carried there.
                                                  CTranslate2                      Marian
    position       none, integer, unit, learned   as a table that ends             no
                   sinusoidal                     as a table that ends             base 10000, sines before cosines
                   rope                           yes, interleaved, any base       no
                   t5                             yes                              no
                   alibi                          no: in its decoder only          no
                   transformer_xl                 no                               no
    score          scaled_dot, dot, additive      yes, yes (queries_scale 1), no   yes, no, no
    norm           pre, post                      yes, yes                         no, yes
    normalization  layer_norm, rms_norm           yes, yes                         yes, no
    activation     relu, gelu, swiglu             yes, yes, yes                    yes, yes, no
"""

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.masks import padding_attn_mask, segment_attn_mask
from dragoman.model.attention import Attention
from dragoman.model.dropout import Dropout
from dragoman.model.embedding import Embedding, Projection
from dragoman.model.layers import (
    NORMALIZATIONS,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Residual,
)
from dragoman.model.position import POSITIONS, Position
from dragoman.model.shape import ModelConfig
from dragoman.model.varlen import Paired, Runs


class Transformer(nn.Module):
    """See `ModelConfig` for the shape; vocabulary sizes come from the tokenizers."""

    def __init__(self, config: ModelConfig, *, src_vocab_size: int, tgt_vocab_size: int) -> None:
        super().__init__()
        if config.tie == "all" and src_vocab_size != tgt_vocab_size:
            raise UserError(
                "model.tie=all needs one vocabulary for both sides: set data.tokenizer.vocabulary=joint, "
                "or model.tie=tgt"
            )
        self.config = config
        d_model, n_heads = config.d_model, config.n_heads
        scheme = POSITIONS[config.position.kind]
        self.encoder_position = scheme(config.position, d_model=d_model, n_heads=n_heads, causal=False)
        self.decoder_position = scheme(config.position, d_model=d_model, n_heads=n_heads, causal=True)

        def attention(position: Position | None) -> Attention:
            return Attention(
                d_model,
                n_heads,
                score=config.score,
                dropout=config.attention_dropout,
                position=None if position is None else position.layer(),
            )

        def feed_forward() -> FeedForward:
            return FeedForward(
                d_model, config.d_ff, activation=config.activation, dropout=config.activation_dropout
            )

        def residuals(n: int) -> list[Residual]:
            return [
                Residual(
                    d_model, dropout=config.dropout, norm=config.norm, normalization=config.normalization
                )
                for _ in range(n)
            ]

        def final_norm() -> nn.Module:  # post-norm layers end in a norm of their own
            if config.norm == "post":
                return nn.Identity()
            return NORMALIZATIONS[config.normalization](d_model, eps=1e-5)

        self.encoder = nn.ModuleList(
            EncoderLayer(attention(self.encoder_position), feed_forward(), residuals(2))
            for _ in range(config.n_encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(attention(self.decoder_position), attention(None), feed_forward(), residuals(3))
            for _ in range(config.n_decoder_layers)
        )
        self.encoder_norm, self.decoder_norm = final_norm(), final_norm()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
        self.dropout = Dropout(config.dropout)
        self.src_embedding = Embedding(src_vocab_size, d_model)
        self.tgt_embedding = self.src_embedding if config.tie == "all" else Embedding(tgt_vocab_size, d_model)
        self.projection = Projection(tgt_vocab_size, d_model)
        if config.tie != "none":
            self.projection.weight = self.tgt_embedding.table.weight  # type: ignore[assignment]

    @property
    def max_positions(self) -> int | None:
        """How many tokens, BOS or EOS included, a sentence may have on either side; None: as many as fit."""
        return self.config.position.limit

    def encode(
        self,
        src: Tensor,
        src_key_padding_mask: Tensor | None,
        *,
        positions: Tensor | None = None,
        segments: Tensor | Runs | None = None,
    ) -> Tensor:
        """src (B, S) ids, src_key_padding_mask (B, S) True = padding, None = there is none -> memory (B, S, D).

        Where a row holds several pairs, `positions` (B, S) begin again with each, and `segments` say which token
        belongs to which: (B, S) numbers, 0 = padding, or the runs of a single row.
        """
        if positions is None:
            positions = torch.arange(src.size(1), device=src.device)
        attn_mask = _who_sees_whom(segments, segments, src_key_padding_mask)
        x = self.dropout(self.encoder_position.embed(self.src_embedding(src), positions))
        for layer in self.encoder:
            x = layer(x, attn_mask, positions)
        return self.encoder_norm(x)

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        memory_key_padding_mask: Tensor | None,
        *,
        positions: Tensor | None = None,
    ) -> Tensor:
        """tgt (B, T) ids beginning with BOS -> logits (B, T, V), all at once; step.py gives one after the other."""
        return self.projection(self.states(tgt, memory, memory_key_padding_mask, positions=positions))

    def states(
        self,
        tgt: Tensor,
        memory: Tensor,
        memory_key_padding_mask: Tensor | None,
        *,
        positions: Tensor | None = None,
        segments: Tensor | Runs | None = None,
        memory_segments: Tensor | Runs | None = None,
    ) -> Tensor:
        """`decode` up to the projection: (B, T) -> (B, T, D). The training loss projects these in chunks.

        `segments` and `memory_segments` as in `encode`: a pair of the target sees its own source and no other.
        """
        if positions is None:
            positions = torch.arange(tgt.size(1), device=tgt.device)
        own_mask = None if segments is None else _who_sees_whom(segments, segments, memory_key_padding_mask)
        attn_mask = _who_sees_whom(segments, memory_segments, memory_key_padding_mask)
        x = self.dropout(self.decoder_position.embed(self.tgt_embedding(tgt), positions))
        for layer in self.decoder:
            x = layer(x, memory, attn_mask, positions, attn_mask=own_mask)
        return self.decoder_norm(x)

    def forward(self, src: Tensor, tgt_in: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        """Teacher forcing: src (B, S), tgt_in (B, T) = BOS y1 .. yn -> logits (B, T, V) for y1 .. yn EOS."""
        return self.decode(tgt_in, self.encode(src, src_key_padding_mask), src_key_padding_mask)


def _who_sees_whom(
    q_segments: Tensor | Runs | None, k_segments: Tensor | Runs | None, key_padding_mask: Tensor | None
) -> Tensor | Paired | None:
    """What attention takes for its mask: by padding where a row is a sentence, else by segments."""
    if isinstance(q_segments, Tensor) and isinstance(k_segments, Tensor):
        return segment_attn_mask(q_segments, k_segments)
    if isinstance(q_segments, Runs) and isinstance(k_segments, Runs):
        return Paired(q_segments, k_segments)
    assert q_segments is k_segments is None, "both sides are packed, in the same way, or neither is"
    return padding_attn_mask(key_padding_mask)

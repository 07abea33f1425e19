"""Encoder and decoder layers (Vaswani et al. 2017, figure 1)."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config import ModelConfig
from dragoman.errors import choose
from dragoman.model.attention import Attention
from dragoman.model.cache import LayerCache
from dragoman.model.dropout import Dropout
from dragoman.model.position import Position

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "swiglu": F.silu}
# RMSNorm (Zhang & Sennrich 2019) leaves out LayerNorm's mean and bias.
NORMALIZATIONS: dict[str, Callable[..., nn.Module]] = {"layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm}


def normalization(config: ModelConfig) -> nn.Module:
    """Normalisation over the D components of each position."""
    return choose("model.normalization", config.normalization, NORMALIZATIONS)(config.d_model, eps=1e-5)


class Residual(nn.Module):
    """x + dropout(f(norm(x))) for norm="pre"; norm(x + dropout(f(x))) for "post"."""

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
        up = self.up(x)  # (B, T, F)
        hidden = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        return self.down(self.dropout(hidden))


def _attention(config: ModelConfig, position: Position | None) -> Attention:
    dropout = config.attention_dropout
    return Attention(config.d_model, config.n_heads, score=config.score, dropout=dropout, position=position)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig, position: Position) -> None:
        super().__init__()
        self.self_attention = _attention(config, position.layer())
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
        self.self_attention = _attention(config, position.layer())
        self.cross_attention = _attention(config, None)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(
        self, x: Tensor, memory: Tensor, memory_attn_mask: Tensor | None, cache: LayerCache | None = None
    ) -> Tensor:
        """x (N, T, D), memory (B, S, D), memory_attn_mask (B, 1, 1, S) -> (N, T, D).

        Target padding needs no mask: it is at the right, where the causal mask hides it.
        """
        own, source = (None, None) if cache is None else cache

        def cross_attention(y: Tensor) -> Tensor:
            # The k rows of a sentence become one row of k times the queries, so its keys are read once.
            queries = y.reshape(memory.size(0), -1, y.size(2))
            return self.cross_attention(queries, memory, memory_attn_mask, cache=source).view_as(y)

        x = self.residuals[0](x, lambda y: self.self_attention(y, y, causal=True, cache=own))
        x = self.residuals[1](x, cross_attention)
        return self.residuals[2](x, self.feed_forward)

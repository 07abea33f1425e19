"""The two layers of the paper's figure 1. Residual and normalisation are written once, so a layer reads like it."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.model.attention import Attention
from dragoman.model.dropout import Dropout
from dragoman.model.varlen import Paired

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "swiglu": F.silu}


# RMSNorm (Zhang & Sennrich 2019) leaves out LayerNorm's mean and bias. Both look at one position at a time.
NORMALIZATIONS: dict[str, type[nn.LayerNorm | nn.RMSNorm]] = {
    "layer_norm": nn.LayerNorm,
    "rms_norm": nn.RMSNorm,
}


class Residual(nn.Module):
    """x + dropout(f(norm(x))) for norm="pre"; norm(x + dropout(f(x))), the paper's order, for norm="post"."""

    def __init__(self, d_model: int, *, dropout: float, norm: str, normalization: str) -> None:
        super().__init__()
        self.norm = NORMALIZATIONS[normalization](d_model, eps=1e-5)
        self.dropout = Dropout(dropout)
        self.pre = norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class FeedForward(nn.Module):
    """Two products with an activation between, at each position alone. swiglu (Shazeer 2020) has a third, its gate."""

    def __init__(self, d_model: int, d_ff: int, *, activation: str, dropout: float) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.up = nn.Linear(d_model, d_ff)
        self.gate = nn.Linear(d_model, d_ff) if activation == "swiglu" else None
        self.down = nn.Linear(d_ff, d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = (
            self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)
        )
        return self.down(self.dropout(hidden))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, attention: Attention, feed_forward: FeedForward, residuals: list[Residual]) -> None:
        super().__init__()
        self.self_attention, self.feed_forward = attention, feed_forward
        self.residuals = nn.ModuleList(residuals)

    def forward(self, x: Tensor, attn_mask: Tensor | Paired | None, positions: Tensor) -> Tensor:
        x = self.residuals[0](x, lambda y: self.self_attention(y, y, attn_mask, positions=positions))
        return self.residuals[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the memory, then feed-forward."""

    def __init__(
        self,
        self_attention: Attention,
        cross_attention: Attention,
        feed_forward: FeedForward,
        residuals: list[Residual],
    ) -> None:
        super().__init__()
        self.self_attention, self.cross_attention = self_attention, cross_attention
        self.feed_forward = feed_forward
        self.residuals = nn.ModuleList(residuals)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        memory_attn_mask: Tensor | Paired | None,
        positions: Tensor,
        *,
        attn_mask: Tensor | Paired | None = None,
    ) -> Tensor:
        """No target padding mask: padding stands at the right, where the causal mask already hides it. `attn_mask`
        is for pairs packed into one row."""
        x = self.residuals[0](
            x, lambda y: self.self_attention(y, y, attn_mask, causal=True, positions=positions)
        )
        x = self.residuals[1](x, lambda y: self.cross_attention(y, memory, memory_attn_mask))
        return self.residuals[2](x, self.feed_forward)

"""How a Transformer knows the order of its tokens.

Attention by itself sees a set. A position scheme may speak at three places, and each kind overrides what it needs;
the base class says nothing anywhere:
    embed   once, on the word vectors, before the first layer (sinusoidal)
    rotate  on queries and keys, in every self-attention
    bias    on the scores, in every self-attention, after scaling and before the mask
Cross-attention compares positions of two different sentences, so none of this is applied there.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.errors import UserError, suggest


@dataclass(kw_only=True)
class PositionConfig:
    """`kind` names the scheme; `base` is the 10000 of the sinusoid, which sets the longest wavelength."""

    kind: str = "sinusoidal"
    base: float = 10000.0

    def __post_init__(self) -> None:
        if self.kind not in POSITIONS:
            choices = ", ".join(POSITIONS)
            raise UserError(
                f"model.position.kind={self.kind}: choose one of {choices}{suggest(self.kind, POSITIONS)}"
            )
        if self.base <= 1:
            raise UserError(f"model.position.base={self.base}: must be greater than 1 (the paper's is 10000)")


class Position(nn.Module):
    """No positions at all; the parent of every scheme."""

    def __init__(self, config: PositionConfig, *, d_model: int, n_heads: int) -> None:
        super().__init__()

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, D), positions (T,) or (B, T) -> (B, T, D)."""
        return x

    def rotate(self, q_or_k: Tensor, positions: Tensor) -> Tensor:
        """(B, H, T, d), positions (T,) or (B, T) -> (B, H, T, d)."""
        return q_or_k

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """What is added to the scores: None, or broadcastable to (B, H, T_q, T_k)."""
        return None


def sinusoid(positions: Tensor, d_model: int, base: float) -> Tensor:
    """PE(pos, 2i) = sin(pos / base^(2i/D)), PE(pos, 2i+1) = cos(the same): (..., T) -> (..., T, D), interleaved.

    Source: Vaswani et al. 2017, section 3.5.
    """
    even = torch.arange(0, d_model, 2, device=positions.device, dtype=torch.float32)
    frequencies = torch.exp(even * (-math.log(base) / d_model))
    angles = positions[..., None].float() * frequencies  # (..., T, D/2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :d_model]


class Sinusoidal(Position):
    """The paper's fixed wavelengths, added to the word vectors. Computed where needed, so there is no longest input."""

    def __init__(self, config: PositionConfig, *, d_model: int, n_heads: int) -> None:
        super().__init__(config, d_model=d_model, n_heads=n_heads)
        self.d_model, self.base = d_model, config.base

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + sinusoid(positions, self.d_model, self.base).to(x.dtype)


POSITIONS: dict[str, type[Position]] = {"sinusoidal": Sinusoidal, "none": Position}

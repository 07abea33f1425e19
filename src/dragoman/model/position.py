"""Position schemes: how a Transformer learns the order of its tokens.

Attention by itself sees a set. A position scheme may act at three places, and each kind overrides what it needs;
the base class leaves its input as it is:
    embed   once, on the word vectors, before the first layer     integer, unit, sinusoidal, learned
    rotate  on queries and keys, in every self-attention          rope
    bias    on the scores, in every self-attention, after scaling and before the mask    t5, transformer_xl, alibi
Encoder and decoder have one scheme each; in the decoder (`causal`) no key lies ahead of its query. Cross-attention
compares positions of two different sentences, so no scheme acts there.

Positions (T,) count from 0 within a sentence.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config import PositionConfig
from dragoman.errors import UserError


class Position(nn.Module):
    """No positions at all; the parent of every scheme."""

    ctranslate2 = True  # whether CTranslate2 has a place for the scheme

    def __init__(self, config: PositionConfig, *, d_model: int, n_heads: int, causal: bool) -> None:
        super().__init__()
        self.config, self.d_model, self.n_heads, self.causal = config, d_model, n_heads, causal

    @classmethod
    def limit(cls, config: PositionConfig) -> int | None:
        """The number of positions that exist; None: no limit."""
        return None

    def layer(self) -> "Position":
        """The scheme of one layer: the same module for all layers, unless each learns parameters of its own."""
        return self

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, D), positions (T,) -> (B, T, D)."""
        return x

    def rotate(self, q_or_k: Tensor, positions: Tensor) -> Tensor:
        """(B, H, T, d), positions (T,) -> (B, H, T, d)."""
        return q_or_k

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """The addend of the scores: None, or broadcastable to (B, H, T_q, T_k). Keys are all tokens so far."""
        return None


class Integer(Position):
    """The position number n, added to the first component: the simplest idea, kept to show why it fails.

    It has no bound: soon one component drowns all others, and a longer text brings numbers never seen in training.
    (Added to every component it would be undone by the first LayerNorm, which subtracts their mean.)
    """

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + F.pad(positions[:, None].to(x.dtype), (0, x.size(-1) - 1))


class Unit(Integer):
    """The numbers squeezed into [0, 1]: bounded, but neighbours are hard to tell apart.

    The last of `length` positions is 1. (Were it the last word of each sentence, the step between neighbours would
    depend on the sentence's length, which a decoder cannot see before the end.)
    """

    @classmethod
    def limit(cls, config: PositionConfig) -> int | None:
        return config.length

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().embed(x, positions / (self.config.length - 1))


def sinusoid(positions: Tensor, d_model: int, base: float) -> Tensor:
    """PE(pos, 2i) = sin(pos / base^(2i/D)), PE(pos, 2i+1) = cos(the same): (T,) -> (T, D) (Vaswani 2017, 3.5)."""
    angles = _angles(positions, d_model, base)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[:, :d_model]


def _angles(positions: Tensor, d_model: int, base: float) -> Tensor:
    """pos / base^(2i/D): (T,) -> (T, D/2). Each pair of components has its own wavelength."""
    even = torch.arange(0, d_model, 2, device=positions.device, dtype=torch.float32)
    frequencies = torch.exp(even * (-math.log(base) / d_model))
    return positions[:, None].float() * frequencies


class Sinusoidal(Position):
    """The paper's fixed wavelengths, added to the word vectors: computed on demand, so no input is too long."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + sinusoid(positions, self.d_model, self.config.base).to(x.dtype)


class Learned(Position):
    """One learned vector for each of `length` positions (Gehring et al. 2017)."""

    def __init__(self, config: PositionConfig, *, d_model: int, n_heads: int, causal: bool) -> None:
        super().__init__(config, d_model=d_model, n_heads=n_heads, causal=causal)
        # As large as the sinusoids: word vectors of deviation 1 would drown smaller ones for long.
        self.table = nn.Parameter(torch.empty(config.length, d_model).normal_(std=0.7))

    @classmethod
    def limit(cls, config: PositionConfig) -> int | None:
        return config.length

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions].to(x.dtype)


class Rope(Position):
    """Rotates each pair of components of queries and keys by its angle (Su et al. 2021, RoFormer, equation 15).

    A query at m and a key at n then meet under the angle (m - n) * frequency: only the distance is left.
    """

    def __init__(self, config: PositionConfig, *, d_model: int, n_heads: int, causal: bool) -> None:
        super().__init__(config, d_model=d_model, n_heads=n_heads, causal=causal)
        self.d_head = d_model // n_heads
        if self.d_head % 2:
            raise UserError(
                f"model.position.kind=rope rotates pairs of components, but model.d_model={d_model} over "
                f"model.n_heads={n_heads} makes heads of {self.d_head}. Change n_heads so that their size is even."
            )

    def rotate(self, q_or_k: Tensor, positions: Tensor) -> Tensor:
        angles = _angles(positions, self.d_head, self.config.base)  # (T, d/2)
        sin, cos = angles.sin().to(q_or_k.dtype), angles.cos().to(q_or_k.dtype)
        even, odd = q_or_k[..., 0::2], q_or_k[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def distances(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """j - i of query i and key j: (T_q,), (T_k,) -> (T_q, T_k). The past is negative."""
    return k_positions - q_positions[:, None]


class T5(Position):
    """A learned number for each head and bucket of distances, the same in all layers (Raffel et al. 2020, section 2.1).

    Half of the buckets hold one distance each, the rest ever wider ranges up to max_distance and all beyond. The
    encoder uses one half of them for keys behind the query and one for keys ahead. (T5 also leaves out the 1/sqrt(d)
    of the scores: that is `model.score=dot`.)
    """

    def __init__(self, config: PositionConfig, *, d_model: int, n_heads: int, causal: bool) -> None:
        super().__init__(config, d_model=d_model, n_heads=n_heads, causal=causal)
        self.table = nn.Parameter(torch.empty(config.n_buckets, n_heads).normal_(std=d_model**-0.5))

    def buckets(self, distances: Tensor) -> Tensor:
        """Distances j - i of any shape -> the number of each one's bucket."""
        n, first = self.config.n_buckets, torch.zeros_like(distances)
        if self.causal:
            far = (-distances).clamp(min=0)
        else:
            n //= 2
            first, far = torch.where(distances > 0, n, 0), distances.abs()
        exact = n // 2
        # From `exact` to max_distance in equal steps of the logarithm.
        share = torch.log(far.clamp(min=1).float() / exact) / math.log(self.config.max_distance / exact)
        wide = (exact + (share * (n - exact)).long()).clamp(max=n - 1)
        return first + torch.where(far < exact, far, wide)

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        buckets = self.buckets(distances(q_positions, k_positions))  # (T_q, T_k)
        return self.table[buckets].permute(2, 0, 1)  # (H, T_q, T_k)


class TransformerXL(Position):
    """Content and position meet in four terms (Dai et al. 2019, section 3.3).

    q_i.k_j is the score itself; the bias adds q_i.W_kR R(i-j), u.k_j and v.W_kR R(i-j), where R is the sinusoid of
    the distance and u, v stand for the query where its content does not matter. All layers share u and v; W_kR is
    each layer's own. The three terms are divided by sqrt(d), as `model.score=scaled_dot` divides the first. The
    encoder's negative distances are an extension: the paper has a decoder only.
    """

    ctranslate2 = False

    def __init__(self, config: PositionConfig, *, d_model: int, n_heads: int, causal: bool) -> None:
        super().__init__(config, d_model=d_model, n_heads=n_heads, causal=causal)
        self.u = nn.Parameter(torch.zeros(n_heads, d_model // n_heads))
        self.v = nn.Parameter(torch.zeros(n_heads, d_model // n_heads))

    def layer(self) -> Position:
        return _TransformerXLLayer(self)


class _TransformerXLLayer(Position):
    def __init__(self, shared: TransformerXL) -> None:
        super().__init__(shared.config, d_model=shared.d_model, n_heads=shared.n_heads, causal=shared.causal)
        self.u, self.v = shared.u, shared.v
        self.r = nn.Linear(shared.d_model, shared.d_model, bias=False)  # W_kR

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        n_heads, d_head = self.u.shape
        content = self.u[:, None] @ k.transpose(-2, -1)  # (B, H, 1, T_k): the same for every query
        # Every possible distance i - j is projected once; each pair of tokens then picks its own.
        farthest = k.size(2) - 1
        nearest = 0 if self.causal else -farthest
        distance = torch.arange(nearest, farthest + 1, device=k.device)
        r = self.r(sinusoid(distance, self.d_model, self.config.base).to(self.r.weight.dtype))
        r = r.unflatten(-1, (n_heads, d_head)).permute(1, 2, 0)  # (H, d, distances)
        by_distance = (q + self.v[:, None]) @ r  # (B, H, T_q, distances)
        pick = (-distances(q_positions, k_positions)).clamp(min=nearest) - nearest  # (T_q, T_k)
        position = by_distance.gather(3, pick.expand(q.size(0), n_heads, -1, -1))
        return (content + position) / math.sqrt(d_head)


class Alibi(Position):
    """Scores fall with the distance, at each head's own slope, in both directions alike (Press et al. 2022, 3)."""

    ctranslate2 = False  # it has the scheme in its decoder only

    def __init__(self, config: PositionConfig, *, d_model: int, n_heads: int, causal: bool) -> None:
        super().__init__(config, d_model=d_model, n_heads=n_heads, causal=causal)
        self.slopes: Tensor
        self.register_buffer("slopes", torch.tensor(_slopes(n_heads)), persistent=False)

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        # In fp32 whatever the type of q: bf16 would round long distances.
        return -self.slopes[:, None, None] * distances(q_positions, k_positions).abs()


def _slopes(n_heads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n), ... 2^-8; where n is no power of 2, every other slope of the next one fills up."""
    whole = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (h + 1) / whole) for h in range(whole)]
    return slopes + [2 ** (-4 * (2 * h + 1) / whole) for h in range(n_heads - whole)]


POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "integer": Integer,
    "unit": Unit,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rope": Rope,
    "t5": T5,
    "transformer_xl": TransformerXL,
    "alibi": Alibi,
}

"""Position schemes.

Attention alone ignores the order of its tokens. A scheme overrides one of three methods; those of the base class
leave their input unchanged:
    embed   on the word vectors, before the first layer  integer, unit, sentence_unit, sinusoidal, product, learned
            (in the encoder `embed_source`, which differs from it in sentence_unit only)
    rotate  on queries and keys, in every self-attention          rope
    bias    on the scores, in every self-attention, after scaling and before the mask    t5, transformer_xl, alibi
Encoder and decoder have one scheme each; in the decoder (`causal`) no key lies ahead of its query. Cross-attention
compares positions of two different sentences, so no scheme acts there. Positions (T,) count from 0 in a sentence.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config import PositionConfig
from dragoman.errors import UserError


class Position(nn.Module):
    """No positions; the base class of every scheme."""

    ctranslate2 = True  # whether CTranslate2 supports the scheme
    limited = False  # whether there are at most `length` positions
    scale = 1.0  # factor of a bias that consists of dot products

    def __init__(self, config: PositionConfig, *, d_model: int, n_heads: int, causal: bool) -> None:
        super().__init__()
        self.config, self.d_model, self.n_heads, self.causal = config, d_model, n_heads, causal

    def layer(self) -> "Position":
        """Return the module of one layer; layers without own parameters share one."""
        return self

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, D), positions (T,) -> (B, T, D)."""
        return x

    def embed_source(self, x: Tensor, positions: Tensor, padding: Tensor | None) -> Tensor:
        """`embed` in the encoder, where `padding` (B, T) gives the lengths of sentences."""
        return self.embed(x, positions)

    def rotate(self, q_or_k: Tensor, positions: Tensor) -> Tensor:
        """(B, H, T, d), positions (T,) -> (B, H, T, d)."""
        return q_or_k

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """Return the bias of the scores: None, or broadcastable to (B, H, T_q, T_k)."""
        return None


class Integer(Position):
    """The position n, added to the first component; kept to show why this fails.

    The number has no bound: one component soon dominates all others, and a longer text has numbers never seen in
    training. (The first LayerNorm would remove a number added to every component, by subtracting the mean.)
    """

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + F.pad(positions[..., None].to(x.dtype), (0, x.size(-1) - 1))


class Unit(Integer):
    """Position n becomes n / (length - 1), in [0, 1]; neighbours hardly differ."""

    limited = True

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().embed(x, positions / (self.config.length - 1))


class SentenceUnit(Unit):
    """`unit`, but in the encoder the last token of each sentence is at 1 (note 000)."""

    ctranslate2 = False

    def embed_source(self, x: Tensor, positions: Tensor, padding: Tensor | None) -> Tensor:
        tokens = x.new_ones(x.shape[:2]) if padding is None else ~padding
        return Integer.embed(self, x, positions / (tokens.sum(1, keepdim=True) - 1).clamp(min=1))


def sinusoid(positions: Tensor, d_model: int, base: float) -> Tensor:
    """(T,) -> (T, D): sin(pos / base^(2i/D)) and its cosine at components 2i, 2i+1."""
    angles = phases(positions, d_model, base)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[:, :d_model]


def phases(positions: Tensor, d_model: int, base: float) -> Tensor:
    """(T,) -> (T, D/2): pos / base^(2i/D)."""
    even = torch.arange(0, d_model, 2, device=positions.device, dtype=torch.float32)
    return positions[:, None].float() * torch.exp(even * (-math.log(base) / d_model))


class Sinusoidal(Position):
    """Sinusoids added to the embeddings, for any length (Vaswani et al. 2017, 3.5)."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + sinusoid(positions, self.d_model, self.config.base).to(x.dtype)


class Product(Position):
    """Sinusoids multiplied by the embeddings instead of added (note 003, section 8.1)."""

    ctranslate2 = False  # it can only add positions

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x * sinusoid(positions, self.d_model, self.config.base).to(x.dtype)


class Learned(Position):
    """One learned vector for each of `length` positions (Gehring et al. 2017)."""

    limited = True

    def __init__(self, config: PositionConfig, *, d_model: int, n_heads: int, causal: bool) -> None:
        super().__init__(config, d_model=d_model, n_heads=n_heads, causal=causal)
        # The std of the sinusoids. Embeddings have std 1 and would dominate smaller positions.
        self.table = nn.Parameter(torch.empty(config.length, d_model).normal_(std=0.7))
        if config.start == "sinusoidal":
            self.table.data = sinusoid(torch.arange(config.length), d_model, config.base)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions].to(x.dtype)


class Rope(Position):
    """Rotation of pairs of components of q and k (Su et al. 2021, equation 15).

    A query at m and a key at n differ in rotation by (m - n) * frequency: only the distance matters in q.k.
    """

    def rotate(self, q_or_k: Tensor, positions: Tensor) -> Tensor:
        angles = phases(positions, q_or_k.size(-1), self.config.base)  # (T, d/2)
        sin, cos = angles.sin().to(q_or_k.dtype), angles.cos().to(q_or_k.dtype)
        even, odd = q_or_k[..., 0::2], q_or_k[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class T5(Position):
    """Learned bias per head and bucket of distances (Raffel et al. 2020, section 2.1).

    All layers share the biases. Half of the buckets hold one distance each, the others growing ranges; the last holds
    all from max_distance on. The encoder uses half of the buckets for keys before the query and half for keys after it.
    (T5 also omits the 1/sqrt(d) of the scores, `model.score=dot`, and starts W_q that much smaller instead.)
    """

    def __init__(self, config: PositionConfig, *, d_model: int, n_heads: int, causal: bool) -> None:
        super().__init__(config, d_model=d_model, n_heads=n_heads, causal=causal)
        if config.max_distance <= config.n_buckets // 2:
            raise UserError(f"model.position.max_distance={config.max_distance}: must be more than n_buckets / 2")
        self.table = nn.Parameter(torch.empty(config.n_buckets, n_heads).normal_(std=d_model**-0.5))

    def buckets(self, distances: Tensor) -> Tensor:
        """Return the bucket of each distance j - i."""
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
        buckets = self.buckets(k_positions - q_positions[:, None])  # (T_q, T_k)
        return self.table[buckets].permute(2, 0, 1)  # (H, T_q, T_k)


class TransformerXL(Position):
    """Scores of four terms of content and position (Dai et al. 2019, section 3.3).

    q_i.k_j is the score itself; the bias adds q_i.W_kR R(i-j), u.k_j and v.W_kR R(i-j), where R is the sinusoid of
    the distance and the learned u and v replace the query. All layers share u and v; each layer has its own W_kR.
    With `model.score=dot` all terms are as in the paper's formula; otherwise these three are divided by sqrt(d), as
    scaled_dot divides the first. Negative distances, in the encoder, are an extension: the paper has a decoder only.
    """

    ctranslate2 = False

    def __init__(self, config: PositionConfig, *, d_model: int, n_heads: int, causal: bool) -> None:
        super().__init__(config, d_model=d_model, n_heads=n_heads, causal=causal)
        self.u, self.v = (nn.Parameter(torch.zeros(n_heads, d_model // n_heads)) for _ in range(2))

    def layer(self) -> Position:
        return _TransformerXLLayer(self)


class _TransformerXLLayer(Position):
    def __init__(self, shared: TransformerXL) -> None:
        super().__init__(shared.config, d_model=shared.d_model, n_heads=shared.n_heads, causal=shared.causal)
        self.u, self.v, self.scale = shared.u, shared.v, shared.u.size(1) ** -0.5
        self.r = nn.Linear(shared.d_model, shared.d_model, bias=False)  # W_kR

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        content = self.u[:, None] @ k.transpose(-2, -1)  # (B, H, 1, T_k): the same for every query
        # Project every distance i - j once; then gather the one of each pair of tokens.
        farthest = k.size(2) - 1
        nearest = 0 if self.causal else -farthest
        distance = torch.arange(nearest, farthest + 1, device=k.device)
        r = self.r(sinusoid(distance, self.d_model, self.config.base).to(self.r.weight.dtype))
        r = r.unflatten(-1, self.u.shape).permute(1, 2, 0)  # (H, d, distances)
        by_distance = (q + self.v[:, None]) @ r  # (B, H, T_q, distances)
        # (T_q, T_k): the column of i - j. If causal, later keys have none; they are masked, so any will do.
        pick = (q_positions[:, None] - k_positions).clamp(min=nearest) - nearest
        return (content + by_distance.gather(3, pick.expand(*q.shape[:2], -1, -1))) * self.scale


class Alibi(Position):
    """Linear bias -slope * |distance|, one slope per head (Press et al. 2022, 3)."""

    ctranslate2 = False  # it has ALiBi in the decoder only

    def __init__(self, config: PositionConfig, *, d_model: int, n_heads: int, causal: bool) -> None:
        super().__init__(config, d_model=d_model, n_heads=n_heads, causal=causal)
        whole = 2 ** math.floor(math.log2(n_heads))
        slopes = [2 ** (-8 * (h + 1) / whole) for h in range(whole)]  # 2^(-8/n) .. 2^-8
        # Other numbers of heads add every second slope of the next power of 2.
        slopes += [2 ** (-8 * (2 * h + 1) / (2 * whole)) for h in range(n_heads - whole)]
        self.slopes: Tensor
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        # Computed in fp32; the fused kernel (attention.py) rounds it to the dtype of q.
        return -self.slopes[:, None, None] * (k_positions - q_positions[:, None]).abs()


POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "integer": Integer,
    "unit": Unit,
    "sentence_unit": SentenceUnit,
    "sinusoidal": Sinusoidal,
    "product": Product,
    "learned": Learned,
    "rope": Rope,
    "t5": T5,
    "transformer_xl": TransformerXL,
    "alibi": Alibi,
}

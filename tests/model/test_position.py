"""Position schemes, compared with their papers' formulas written out as loops."""

import math

import pytest
import torch
from torch import Tensor

from dragoman.config import PositionConfig
from dragoman.errors import UserError
from dragoman.model.attention import Attention
from dragoman.model.position import POSITIONS

T, D, H, D_HEAD = 7, 8, 2, 4
POSITION_NUMBERS = torch.arange(T)
WORDS = torch.randn(2, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def close(result: Tensor, expected: list | Tensor) -> None:
    torch.testing.assert_close(result.double(), torch.as_tensor(expected, dtype=torch.float64), atol=1e-5, rtol=1e-5)


def pe(pos: float, i: int, d: int, base: float) -> float:
    """Component i of d: Vaswani et al. 2017, section 3.5."""
    angle = pos / base ** ((i - i % 2) / d)
    return math.cos(angle) if i % 2 else math.sin(angle)


ADDED = {
    "none": lambda pos, i, table: 0.0,
    "integer": lambda pos, i, table: pos if i == 0 else 0.0,
    "unit": lambda pos, i, table: pos / 15 if i == 0 else 0.0,  # the last of 16 places is 1
    "sinusoidal": lambda pos, i, table: pe(pos, i, D, 100.0),
    "sentence_unit": lambda pos, i, table: pos / 15 if i == 0 else 0.0,  # in the decoder
    "learned": lambda pos, i, table: table[pos][i],
}


@pytest.mark.parametrize("kind", ADDED)
def test_embed_adds_the_formula_of_the_scheme(kind, scheme):
    position = scheme(kind, base=100.0, length=16)
    table = position.table.tolist() if kind == "learned" else None
    expected = [[ADDED[kind](pos, i, table) for i in range(D)] for pos in range(T)]
    close(position.embed(WORDS, POSITION_NUMBERS) - WORDS, torch.tensor(expected).expand(2, T, D))


def test_the_product_multiplies_each_component_by_the_sinusoid(scheme):
    factors = torch.tensor([[pe(pos, i, D, 100.0) for i in range(D)] for pos in range(T)])
    close(scheme("product", base=100.0).embed(WORDS, POSITION_NUMBERS), WORDS * factors)


@pytest.mark.parametrize("d", [8, 7], ids=["even", "odd"])
def test_learned_positions_may_start_from_the_sinusoids(d, scheme):
    position = scheme("learned", d_model=d, n_heads=1, base=100.0, length=T, start="sinusoidal")
    close(position.table, [[pe(pos, i, d, 100.0) for i in range(d)] for pos in range(T)])
    assert position.table.requires_grad


def test_the_last_token_of_each_source_is_at_1_in_sentence_unit(scheme):
    """Note 000. The step is 1/6 in the first sentence and 1/3 in the second."""
    position = scheme("sentence_unit", length=16)
    padding = torch.arange(T) >= torch.tensor([[7], [4], [1]])
    added = (position.embed_source(torch.zeros(3, T, D), POSITION_NUMBERS, padding))[..., 0]
    close(added[0], [k / 6 for k in range(7)])
    close(added[1, :4], [0, 1 / 3, 2 / 3, 1])
    close(added[2, :1], [0])
    close(position.embed_source(torch.zeros(3, T, D), POSITION_NUMBERS, None)[1, :, 0], [k / 6 for k in range(7)])


# rope


def rotated(x: list[float], pos: int, base: float) -> list[float]:
    """The block-diagonal matrix of Su et al. 2021, equation 15, times x."""
    d = len(x)
    matrix = [[0.0] * d for _ in range(d)]
    for i in range(0, d, 2):
        angle = pos * base ** (-i / d)
        matrix[i][i], matrix[i][i + 1] = math.cos(angle), -math.sin(angle)
        matrix[i + 1][i], matrix[i + 1][i + 1] = math.sin(angle), math.cos(angle)
    return [sum(matrix[row][column] * x[column] for column in range(d)) for row in range(d)]


@pytest.mark.parametrize("base", [100.0, 10000.0])
def test_rope_is_the_papers_matrix_times_the_vector(base, scheme):
    q = torch.randn(2, H, T, 6, dtype=torch.float64)
    position = scheme("rope", d_model=12, n_heads=H, base=base)
    expected = [[[rotated(q[b, h, t].tolist(), t, base) for t in range(T)] for h in range(H)] for b in range(2)]
    close(position.rotate(q, POSITION_NUMBERS), expected)


# t5


def bucket(distance: int, *, causal: bool, n_buckets: int, max_distance: int) -> int:
    """T5 bucket (Raffel et al. 2020, 2.1; ranges of T5's own), without a logarithm.

    Below half of the buckets each distance has its own. The others begin at e * (m / e)^(s / n), s = 0 .. n - 1:
    here raised to the power of n, so that only whole numbers are compared.
    """
    first = 0
    if not causal:
        n_buckets //= 2
        first = n_buckets if distance > 0 else 0
    far = max(-distance, 0) if causal else abs(distance)
    e = n_buckets // 2
    if far < e:
        return first + far
    n = n_buckets - e
    steps = [s for s in range(n) if e ** (n - s) * max_distance**s <= far**n]
    return first + e + max(steps)


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (4, 10)])
def test_t5_buckets_are_single_distances_then_wider_ranges(causal, n_buckets, max_distance, scheme):
    position = scheme("t5", causal=causal, n_buckets=n_buckets, max_distance=max_distance)
    far = range(-max_distance - 50, max_distance + 51)
    expected = [bucket(d, causal=causal, n_buckets=n_buckets, max_distance=max_distance) for d in far]
    assert position.buckets(torch.tensor(far)).tolist() == expected
    # In the encoder there is one more, for a key ahead at distance 0, which cannot be.
    assert len(set(expected)) == n_buckets - (not causal)
    with pytest.raises(UserError, match="must be more than n_buckets / 2"):
        scheme("t5", causal=causal, n_buckets=n_buckets, max_distance=n_buckets // 2)


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
def test_the_bias_of_t5_is_looked_up_pair_by_pair(causal, scheme):
    position, q = scheme("t5", causal=causal, n_buckets=8, max_distance=12), torch.randn(2, H, T, D_HEAD)
    table = position.table.tolist()
    expected = [
        [[table[bucket(j - i, causal=causal, n_buckets=8, max_distance=12)][h] for j in range(T)] for i in range(T)]
        for h in range(H)
    ]
    close(position.bias(q, q, POSITION_NUMBERS, POSITION_NUMBERS), expected)


# alibi


def slopes(n_heads: int) -> list[float]:
    """ALiBi slopes (Press et al. 2022): 2^(-8/n), 2^(-16/n) ... for n a power of two.
    For other n: the series of the power below, then every other term of the one above."""
    power = 1
    while 2 * power <= n_heads:
        power *= 2

    def series(n: int) -> list[float]:
        return [(2 ** (-8 / n)) ** (h + 1) for h in range(n)]

    return series(power) + series(2 * power)[0::2][: n_heads - power]


def test_alibi_falls_with_the_distance_at_each_heads_slope(scheme):
    for n_heads in (1, 3, 8, 12):
        position, q = scheme("alibi", n_heads=n_heads, d_model=2 * n_heads), torch.randn(1, n_heads, T, 2)
        expected = [[[-slope * abs(i - j) for j in range(T)] for i in range(T)] for slope in slopes(n_heads)]
        close(position.bias(q, q, POSITION_NUMBERS, POSITION_NUMBERS), expected)


# transformer_xl


def vector(matrix: list[list[float]], x: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, x, strict=True)) for row in matrix]


def product(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def plus(a: list[float], b: list[float]) -> list[float]:
    return [x + y for x, y in zip(a, b, strict=True)]


def four_terms(layer: Attention, words: Tensor, scale: float) -> list:
    """A_ij = (a) + (b) + (c) + (d) of Dai et al. 2019, 3.3, scaled, for each head."""
    part = layer.position
    heads = []
    for h in range(H):
        rows = slice(h * D_HEAD, (h + 1) * D_HEAD)
        w_q, b_q = layer.q.weight[rows].tolist(), layer.q.bias[rows].tolist()
        w_ke, b_k = layer.kv.weight[rows].tolist(), layer.kv.bias[rows].tolist()
        w_kr, u, v = part.r.weight[rows].tolist(), part.u[h].tolist(), part.v[h].tolist()
        scores = []
        for i in range(T):
            query = plus(vector(w_q, words[i].tolist()), b_q)
            scores.append([])
            for j in range(T):
                key = plus(vector(w_ke, words[j].tolist()), b_k)
                distance = vector(w_kr, [pe(i - j, c, D, 10000.0) for c in range(D)])
                a, b = product(query, key), product(query, distance)
                c, d = product(u, key), product(v, distance)
                scores[-1].append((a + b + c + d) * scale)
        heads.append(scores)
    return heads


@pytest.mark.parametrize(("score", "scale"), [("scaled_dot", 0.5), ("dot", 1.0)])
@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
def test_transformer_xl_sums_the_papers_four_terms(causal, score, scale, attention):
    layer = attention("transformer_xl", score, causal=causal).double()
    expected = torch.tensor([four_terms(layer, words, scale) for words in WORDS], dtype=torch.float64)
    if causal:
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        expected = expected.masked_fill(later, float("-inf"))
    close(layer.weights(WORDS, WORDS, causal=causal), expected.softmax(-1))


def test_layers_of_transformer_xl_share_only_u_and_v():
    shared = POSITIONS["transformer_xl"](PositionConfig(), d_model=D, n_heads=H, causal=True)
    one, other = shared.layer(), shared.layer()
    assert one.u is other.u
    assert one.v is other.v
    assert one.r.weight is not other.r.weight

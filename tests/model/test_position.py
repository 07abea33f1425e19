"""Each scheme against its paper, written out as loops over positions and components, with nothing of ours in them."""

import math

import pytest
import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.model.attention import Attention
from dragoman.model.position import POSITIONS, PositionConfig, sinusoid
from networks import attention, scheme

T, D, H, D_HEAD = 7, 8, 2, 4
PLACES = torch.arange(T)
WORDS = torch.randn(2, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def close(found: Tensor, expected: list | Tensor) -> None:
    torch.testing.assert_close(
        found.double(), torch.as_tensor(expected, dtype=torch.float64), atol=1e-5, rtol=1e-5
    )


def pe(pos: float, i: int, d: int, base: float) -> float:
    """Component i of d: Vaswani et al. 2017, section 3.5."""
    angle = pos / base ** ((i - i % 2) / d)
    return math.cos(angle) if i % 2 else math.sin(angle)


@pytest.mark.parametrize("base", [100.0, 10000.0])
@pytest.mark.parametrize("d", [8, 7], ids=["even", "odd"])
def test_the_sinusoid_is_the_papers_formula_entry_by_entry(base, d):
    close(sinusoid(torch.arange(20), d, base), [[pe(pos, i, d, base) for i in range(d)] for pos in range(20)])


ADDED = {
    "none": lambda pos, i, table: 0.0,
    "integer": lambda pos, i, table: pos if i == 0 else 0.0,
    "unit": lambda pos, i, table: pos / 15 if i == 0 else 0.0,  # the last of 16 places is 1
    "sinusoidal": lambda pos, i, table: pe(pos, i, D, 100.0),
    "learned": lambda pos, i, table: table[pos][i],
}


@pytest.mark.parametrize("kind", POSITIONS)
def test_what_is_added_to_the_words_is_what_the_scheme_says_and_nothing_where_it_speaks_elsewhere(kind):
    position = scheme(kind, base=100.0, length=16)
    added = ADDED.get(kind, ADDED["none"])
    table = position.table.tolist() if kind == "learned" else None
    expected = [[added(pos, i, table) for i in range(D)] for pos in range(T)]
    close(position.embed(WORDS, PLACES) - WORDS, torch.tensor(expected).expand(2, T, D))


@pytest.mark.parametrize("kind", POSITIONS)
def test_positions_may_restart_within_a_row(kind):
    position = scheme(kind, length=16)
    places = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])
    words = torch.zeros(2, 5, D)
    found = position.embed(words, places)
    assert torch.equal(found[0, 3:], found[0, :2])
    assert torch.equal(found[1], position.embed(words[:1], torch.arange(5))[0])


@pytest.mark.parametrize("kind", POSITIONS)
def test_each_kind_speaks_at_its_own_place_only(kind):
    position, q = scheme(kind, length=16), torch.randn(2, H, T, D_HEAD)
    assert (position.rotate(q, PLACES) is q) == (kind != "rope")
    assert (position.bias(q, q, PLACES, PLACES) is None) == (kind not in ("t5", "transformer_xl", "alibi"))
    assert (position.embed(WORDS, PLACES) is WORDS) == (kind not in ADDED or kind == "none")


# rope


def turned(x: list[float], pos: int, base: float) -> list[float]:
    """The block-diagonal matrix of Su et al. 2021, equation 15, times x."""
    d = len(x)
    matrix = [[0.0] * d for _ in range(d)]
    for i in range(0, d, 2):
        angle = pos * base ** (-i / d)
        matrix[i][i], matrix[i][i + 1] = math.cos(angle), -math.sin(angle)
        matrix[i + 1][i], matrix[i + 1][i + 1] = math.sin(angle), math.cos(angle)
    return [sum(matrix[row][column] * x[column] for column in range(d)) for row in range(d)]


@pytest.mark.parametrize("base", [100.0, 10000.0])
def test_rope_is_the_papers_matrix_times_the_vector(base):
    q = torch.randn(2, H, T, 6, dtype=torch.float64)
    places = torch.stack((PLACES, PLACES.flip(0) * 3))
    position = scheme("rope", d_model=12, n_heads=H, base=base)
    expected = [
        [[turned(q[b, h, t].tolist(), int(places[b, t]), base) for t in range(T)] for h in range(H)]
        for b in range(2)
    ]
    close(position.rotate(q, places), expected)


def test_under_rope_a_product_depends_on_the_distance_only():
    position = scheme("rope", d_model=16)
    q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8)

    def product(m: int, n: int) -> Tensor:
        turned_q, turned_k = position.rotate(q, torch.tensor([m])), position.rotate(k, torch.tensor([n]))
        return (turned_q * turned_k).sum()

    for distance in (-4, 0, 3):
        products = torch.stack([product(n + distance, n) for n in (4, 9, 40)])
        torch.testing.assert_close(products, products[:1].expand(3), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(product(3, 0), product(2, 0), atol=1e-3)


def test_rope_keeps_lengths_and_leaves_place_0_alone():
    position, q = scheme("rope"), torch.randn(1, H, T, D_HEAD)
    found = position.rotate(q, PLACES)
    torch.testing.assert_close(found.norm(dim=-1), q.norm(dim=-1))
    assert torch.equal(found[:, :, 0], q[:, :, 0])


# t5


def bucket(distance: int, *, causal: bool, n_buckets: int, max_distance: int) -> int:
    """Raffel et al. 2020, section 2.1, and T5's own choice of ranges, without a logarithm.

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
@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (8, 16), (4, 10), (64, 500)])
def test_t5_buckets_hold_single_distances_and_then_ever_wider_ranges(causal, n_buckets, max_distance):
    position = scheme("t5", causal=causal, n_buckets=n_buckets, max_distance=max_distance)
    far = range(-max_distance - 50, max_distance + 51)
    expected = [bucket(d, causal=causal, n_buckets=n_buckets, max_distance=max_distance) for d in far]
    assert position.buckets(torch.tensor(far)).tolist() == expected
    # In the encoder there is one more, for a key ahead at distance 0, which cannot be.
    assert len(set(expected)) == n_buckets - (not causal)


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
def test_the_bias_of_t5_is_looked_up_pair_by_pair(causal):
    position, q = scheme("t5", causal=causal, n_buckets=8, max_distance=12), torch.randn(2, H, T, D_HEAD)
    table = position.table.tolist()
    expected = [
        [
            [table[bucket(j - i, causal=causal, n_buckets=8, max_distance=12)][h] for j in range(T)]
            for i in range(T)
        ]
        for h in range(H)
    ]
    close(position.bias(q, q, PLACES, PLACES)[0], expected)
    close(position.bias(q, q, PLACES.expand(2, T), PLACES.expand(2, T)), [expected, expected])


# alibi


def slopes(n_heads: int) -> list[float]:
    """Press et al. 2022: a geometric series that begins at 2^(-8/n), with that ratio, for n a power of two; for other
    numbers the series of the power below, then every other term of the one above."""
    power = 1
    while 2 * power <= n_heads:
        power *= 2

    def series(n: int) -> list[float]:
        return [(2 ** (-8 / n)) ** (h + 1) for h in range(n)]

    return series(power) + series(2 * power)[0::2][: n_heads - power]


def test_the_slopes_of_eight_heads_are_the_papers_halves():
    assert slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4, 6, 8, 12, 16])
def test_alibi_falls_with_the_distance_at_each_heads_slope(n_heads):
    position, q = scheme("alibi", n_heads=n_heads, d_model=2 * n_heads), torch.randn(1, n_heads, T, 2)
    expected = [
        [[-slopes(n_heads)[h] * abs(i - j) for j in range(T)] for i in range(T)] for h in range(n_heads)
    ]
    close(position.bias(q, q, PLACES, PLACES)[0], expected)


# transformer_xl


def vector(matrix: list[list[float]], x: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, x, strict=True)) for row in matrix]


def product(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def plus(a: list[float], b: list[float]) -> list[float]:
    return [x + y for x, y in zip(a, b, strict=True)]


def four_terms(layer: Attention, words: Tensor) -> list:
    """A_ij of Dai et al. 2019, section 3.3, over sqrt(d), before the mask: (a) + (b) + (c) + (d) for each head."""
    part = layer.position
    found = []
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
                scores[-1].append((a + b + c + d) / math.sqrt(D_HEAD))
        found.append(scores)
    return found


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
def test_transformer_xl_is_the_sum_of_the_papers_four_terms(causal):
    layer = attention("transformer_xl", causal=causal).double()
    expected = torch.tensor([four_terms(layer, words) for words in WORDS], dtype=torch.float64)
    if causal:
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        expected = expected.masked_fill(later, float("-inf"))
    close(layer.weights(WORDS, WORDS, causal=causal), expected.softmax(-1))


def test_the_layers_of_transformer_xl_share_u_and_v_and_nothing_else():
    shared = POSITIONS["transformer_xl"](PositionConfig(), d_model=D, n_heads=H, causal=True)
    one, other = shared.layer(), shared.layer()
    assert one.u is other.u
    assert one.v is other.v
    assert one.r.weight is not other.r.weight


# bad input


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"kind": "sinusodial"}, "choose one of none, integer, .*did you mean 'sinusoidal'"),
        ({"kind": "rotary"}, "model.position.kind=rotary: choose one of .*rope"),
        ({"base": 1.0}, "model.position.base=1.0: must be greater than 1"),
        ({"base": -5.0}, "model.position.base=-5.0"),
        ({"base": float("nan")}, "model.position.base=nan"),
        ({"base": float("inf")}, "model.position.base=inf"),
        ({"length": 1}, "model.position.length=1"),
        ({"n_buckets": 0}, "model.position.n_buckets=0"),
        ({"n_buckets": 30}, "model.position.n_buckets=30: must be a multiple of 4"),
        ({"max_distance": 16}, "model.position.max_distance=16: must be greater than .* 16"),
        ({"n_buckets": 64, "max_distance": 20}, "model.position.max_distance=20: .* 32"),
    ],
    ids=str,
)
def test_an_impossible_scheme_is_refused_by_key(keys, words):
    with pytest.raises(UserError, match=words):
        PositionConfig(**keys)


@pytest.mark.parametrize("kind", POSITIONS)
def test_only_tables_of_places_end(kind):
    config = PositionConfig(kind=kind, length=9)
    assert config.limit == (9 if kind in ("learned", "unit") else None)


def test_a_place_beyond_the_table_is_an_error_and_not_another_place():
    with pytest.raises(IndexError):
        scheme("learned", length=4).embed(WORDS, PLACES)

"""Positions of the study notes, fact by fact, with the notes' own numbers.

The formulas of t5, transformer_xl, rope and alibi are in model/test_position.py and model/test_published.py.
src/dragoman/README.md, "From the notes to the code", says which note teaches what. Where a note is wrong, the test
checks the correct statement, and its docstring says so.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dragoman.config import ModelConfig, PositionConfig
from dragoman.explain import notes
from dragoman.model.attention import Attention
from dragoman.model.position import POSITIONS, Position, phases, sinusoid
from dragoman.model.transformer import Transformer

ABSOLUTE = ("integer", "unit", "sentence_unit", "sinusoidal", "product", "learned")  # change the words
RELATIVE = ("rope", "t5", "transformer_xl", "alibi")  # change the scores


def scheme(kind: str, *, d_model: int = 16, n_heads: int = 2, length: int = 32) -> Position:
    torch.manual_seed(1)
    config = PositionConfig(kind=kind, length=length)
    return POSITIONS[kind](config, d_model=d_model, n_heads=n_heads, causal=False).requires_grad_(False)


def encoding(kind: str, positions: Tensor, d_model: int = 16) -> Tensor:
    """Values (T, D) that the scheme adds to the words at these positions."""
    return scheme(kind, d_model=d_model).embed(torch.zeros(1, len(positions), d_model), positions)[0]


def by_distance(scores: Tensor) -> Tensor:
    """The largest difference of two entries (i, j) of equal i - j: (T, T) -> a number."""
    diagonals = [scores.diagonal(k) for k in range(-len(scores) + 2, len(scores) - 1)]
    return torch.stack([d.max() - d.min() for d in diagonals]).max()


# How positional encodings came about


def test_integer_positions_have_no_bound():
    seen, longer = (encoding("integer", torch.arange(n)) for n in (20, 1000))
    assert (seen.max(), longer.max()) == (19, 999)  # as large as the text is long
    assert (longer[20:].amax(1) > seen.max()).all()  # larger than all numbers in training


def test_in_the_unit_interval_the_step_depends_on_the_length():
    """The first position is 0, the last 1: neighbours are nearer in a longer text."""
    x = torch.zeros(1, 5, 4)
    short, long = (scheme("unit", d_model=4, length=n).embed(x, torch.arange(5))[0, :, 0] for n in (5, 9))
    assert short.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert long.tolist() == [0, 0.125, 0.25, 0.375, 0.5]


@pytest.mark.parametrize("kind", ["integer", "unit"])
def test_layer_norm_removes_a_number_on_every_component(kind):
    """These two schemes therefore change one component only."""
    x, positions = torch.randn(1, 5, 16), torch.arange(5)
    plain, everywhere, first = (
        functional.layer_norm(y, (16,)) for y in (x, x + positions[:, None], scheme(kind).embed(x, positions))
    )
    torch.testing.assert_close(everywhere, plain, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(first[:, 1:], plain[:, 1:], atol=1e-4)


# The sinusoidal encoding


def test_the_table_for_d_4_and_base_10000():
    """The notes cut 0.99995 to 0.9999; all other entries are rounded to four places."""
    noted = torch.tensor([[0, 1, 0, 1], [0.8415, 0.5403, 0.0100, 0.9999], [0.9093, -0.4161, 0.0200, 0.9998]])
    table = notes.pe()["table"]
    cut_off = torch.zeros(3, 4, dtype=torch.bool)
    cut_off[1, 3] = True
    assert torch.equal((table[~cut_off] * 1e4).round(), (noted[~cut_off] * 1e4).round())
    assert table[1, 3].item() == pytest.approx(0.99995, abs=1e-7)
    assert table[1, 2].item() == pytest.approx(0.0099998, abs=1e-7)
    assert table[2, 2].item() == pytest.approx(0.0199986, abs=1e-6)  # the note's seventh place is off by one


def test_the_divisors_for_d_8_are_quarter_powers_of_the_base():
    for base, divisors in zip((100.0, 1000.0, 10000.0), notes.pe()["divisors"], strict=True):
        torch.testing.assert_close(divisors, torch.tensor([base**0, base**0.25, base**0.5, base**0.75]))


def test_d_model_512_has_256_frequencies_in_equal_ratios():
    omega = phases(torch.tensor([1]), 512, 10000.0)[0]
    assert len(omega) == 256  # i from 0 to 255
    np.testing.assert_allclose(omega.numpy(), 10000.0 ** (-2 * np.arange(256) / 512), rtol=1e-4)
    assert 9500 < 1 / omega[-1] < 10000  # not quite the base: i never reaches d/2


def test_fifty_positions_of_512_dimensions_as_in_note_004():
    position = np.arange(50).reshape(-1, 1)
    angles = np.exp(np.arange(0, 512, 2) * -(np.log(10000.0) / 512)) * position
    table = sinusoid(torch.arange(50), 512, 10000.0).numpy()
    assert table.shape == (50, 512)
    np.testing.assert_allclose(table[:, 0::2], np.sin(angles), atol=1e-5)
    np.testing.assert_allclose(table[:, 1::2], np.cos(angles), atol=1e-5)


def test_a_larger_base_slows_all_frequencies_but_the_highest():
    """The note's table slows the highest too; its divisor is base^0 = 1 for any base."""
    small, middle, large = (phases(torch.tensor([1]), 8, base)[0] for base in (100.0, 1000.0, 10000.0))
    assert small[0] == middle[0] == large[0]
    assert (small[1:] > middle[1:]).all()
    assert (middle[1:] > large[1:]).all()


def test_every_position_has_an_encoding_of_its_own():
    table = sinusoid(torch.arange(2000), 64, 10000.0).double()
    assert (torch.cdist(table, table) + 9 * torch.eye(2000)).min() > 0.1


def test_encodings_are_bounded_at_any_position():
    assert sinusoid(torch.tensor([0, 10, 10**3, 10**6]), 64, 10000.0).abs().max() <= 1


def test_each_pair_is_periodic_and_the_encoding_continuous():
    table = sinusoid(torch.arange(0, 700, 0.01), 8, 100.0)
    assert (table[1:] - table[:-1]).norm(dim=1).max() < 0.01 * 2  # at most the root of d/2 times the step
    for i, base_power in enumerate(100.0 ** (torch.arange(4) / 4)):
        later = sinusoid(torch.arange(9) + 2 * math.pi * base_power, 8, 100.0)
        torch.testing.assert_close(later[:, 2 * i : 2 * i + 2], table[:900:100, 2 * i : 2 * i + 2], atol=1e-4, rtol=0)


def test_encodings_are_the_same_in_sentences_of_any_length():
    assert not list(scheme("sinusoidal").parameters())
    assert torch.equal(encoding("sinusoidal", torch.arange(10)), encoding("sinusoidal", torch.arange(50))[:10])


@pytest.mark.parametrize("k", [1, 100])
def test_the_encoding_of_pos_plus_k_is_a_rotation_by_k_alone(k):
    d_model, pos = 32, torch.arange(300)
    rotation = torch.zeros(d_model, d_model, dtype=torch.float64)
    for i in range(d_model // 2):
        angle = k / 10000 ** (2 * i / d_model)
        rotation[2 * i, 2 * i : 2 * i + 2] = torch.tensor([math.cos(angle), math.sin(angle)])
        rotation[2 * i + 1, 2 * i : 2 * i + 2] = torch.tensor([-math.sin(angle), math.cos(angle)])
    rotated = sinusoid(pos, d_model, 10000.0).double() @ rotation.T
    torch.testing.assert_close(sinusoid(pos + k, d_model, 10000.0).double(), rotated, atol=1e-4, rtol=0)


def test_products_of_encodings_depend_on_the_distance_only():
    table = sinusoid(torch.arange(40), 64, 10000.0)
    products = table @ table.T
    assert by_distance(products) < 1e-4
    torch.testing.assert_close(products, products.T)  # the direction is lost
    assert products[0, 0] == 32  # d/2, and less for every other distance
    assert products[0, 1:].max() < 32


def test_a_random_map_in_between_destroys_that_pattern():
    """The W_q and W_k of a new attention layer are such maps."""
    table = sinusoid(torch.arange(40), 64, 10000.0)
    torch.manual_seed(1)
    assert by_distance(table @ torch.randn(64, 64) / 8 @ table.T) > 1
    layer = Attention(ModelConfig(d_model=64, n_heads=1, score="dot")).requires_grad_(False)
    assert by_distance(layer.score(layer.q(table)[None, None], layer.kv(table)[None, None, :, :64])[0, 0]) > 1


# Absolute, relative and rotary positions


def test_absolute_positions_change_words_relative_ones_scores():
    x, q, k = torch.randn(1, 6, 16), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    at = torch.arange(6)
    for kind in ("none", *ABSOLUTE, *RELATIVE):
        position = scheme(kind).layer()
        rotates = not torch.equal(position.rotate(q, at), q)
        assert (not torch.equal(position.embed(x, at), x)) == (kind in ABSOLUTE), kind
        assert (rotates or position.bias(q, k, at, at) is not None) == (kind in RELATIVE), kind


@pytest.mark.parametrize("kind", [*ABSOLUTE, *RELATIVE])
def test_only_relative_weights_ignore_a_shift_of_the_sentence(kind):
    position = scheme(kind)
    torch.manual_seed(2)
    layer = Attention(ModelConfig(d_model=16, n_heads=2, score="dot"), position.layer()).requires_grad_(False)
    x = torch.randn(1, 6, 16)

    def weights(positions: Tensor) -> Tensor:
        q, k = layer.q(position.embed(x, positions)), layer.kv(position.embed(x, positions))[..., :16]
        q, k = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in (q, k))
        q, k = (layer.position.rotate(y, positions) for y in (q, k))
        bias = layer.position.bias(q, k, positions, positions)
        return (layer.score(q, k) + (0 if bias is None else bias)).softmax(-1)

    here, there = weights(torch.arange(6)), weights(torch.arange(6) + 9)
    torch.testing.assert_close(here, layer.weights(*2 * [position.embed(x, torch.arange(6))]))
    assert ((here - there).abs().max() < 1e-5) == (kind in RELATIVE)


def test_learned_positions_are_a_matrix_of_n_by_d():
    position = scheme("learned", d_model=16, length=50).requires_grad_()
    (table,) = position.parameters()
    assert table.shape == (50, 16)
    one_hot = functional.one_hot(torch.arange(3), 50).float()  # note 001: positions can be one-hot
    torch.testing.assert_close(position.embed(torch.zeros(1, 3, 16), torch.arange(3))[0], one_hot @ table)
    position.embed(torch.zeros(1, 3, 16), torch.tensor([0, 1, 4])).sum().backward()
    assert table.grad.abs().sum(1).nonzero().flatten().tolist() == [0, 1, 4]


def test_rope_multiplies_each_pair_by_its_angle():
    """A complex number for each pair, times e^(i pos omega) (Su et al. 2021)."""
    q, at = torch.randn(1, 2, 6, 8), torch.arange(6)
    turns = torch.polar(torch.ones(6, 4), at[:, None] * phases(torch.tensor([1]), 8, 10000.0))
    pairs = torch.view_as_complex(q.unflatten(-1, (4, 2))) * turns
    rotated = scheme("rope").rotate(q, at)
    torch.testing.assert_close(rotated, torch.view_as_real(pairs).flatten(-2), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rotated.norm(dim=-1), q.norm(dim=-1))


def test_t5_adds_one_learned_number_to_each_score():
    position, at = scheme("t5"), torch.arange(6)
    position.table.copy_(torch.arange(64.0).view(32, 2))
    q, k = torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    bias = position.bias(q, k, at, at)
    assert torch.equal(bias, position.bias(q + 1, k - 1, at, at))  # whatever the words are
    assert by_distance(bias[0]) == 0
    assert bias[0, 0, :3].tolist() == [0, 2 * 17, 2 * 18]  # keys ahead have the upper half of the buckets
    assert bias[0, :3, 0].tolist() == [0, 2 * 1, 2 * 2]  # keys behind the lower half


def test_scores_of_words_with_positions_are_four_terms():
    """(X + P) Wq Wk^T (X + P)^T. The notes drop X^T at the end of their third term."""
    torch.manual_seed(1)
    layer = Attention(ModelConfig(d_model=16, n_heads=1, score="dot")).requires_grad_(False)
    for linear in (layer.q, layer.kv):
        torch.nn.init.zeros_(linear.bias)
    x, p = torch.randn(6, 16), sinusoid(torch.arange(6), 16, 10000.0)
    wq, wk = layer.q.weight.T, layer.kv.weight[:16].T

    def scores(embedded: Tensor) -> Tensor:
        return layer.score(layer.q(embedded), layer.kv(embedded)[:, :16])

    xx, xp, px, pp = (a @ wq @ wk.T @ b.T for a, b in itertools.product((x, p), repeat=2))
    torch.testing.assert_close(scores(x), xx)
    with_positions = scores(scheme("sinusoidal").embed(x[None], torch.arange(6))[0])
    torch.testing.assert_close(with_positions, xx + xp + px + pp, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(with_positions, xx + pp, atol=0.1)


# Why they are needed: 我打你, 你打我


def memories(kind: str, order: list[int]) -> tuple[Tensor, Tensor]:
    """The memory of a permuted source, and the memory of the source, permuted."""
    torch.manual_seed(1)
    small = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_encoder_layers": 2, "n_decoder_layers": 1}
    config = ModelConfig(**small, position=PositionConfig(kind=kind))
    model = Transformer(config, src_vocab_size=12, tgt_vocab_size=12).eval().requires_grad_(False)
    src = torch.arange(4, 4 + len(order))[None]
    return model.encode(src[:, order], None), model.encode(src, None)[:, order]


def test_without_positions_the_encoder_sees_a_set():
    for kind in POSITIONS:
        permuted, memory = memories(kind, [3, 1, 0, 4, 2])
        assert torch.allclose(permuted, memory, atol=1e-5) == (kind == "none"), kind


@pytest.mark.parametrize(("n_layers", "has_order"), [(1, False), (2, True)])
def test_a_causal_decoder_has_order_without_positions(n_layers, has_order):
    """From layer two on, the states of earlier words depend on the words before them."""
    torch.manual_seed(1)
    small = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": n_layers}
    config = ModelConfig(**small, position=PositionConfig(kind="none"))
    model = Transformer(config, src_vocab_size=12, tgt_vocab_size=12).eval().requires_grad_(False)
    memory = model.encode(torch.tensor([[4, 5]]), None)
    one, other = (model.decode(torch.tensor([tgt]), memory, None)[0, -1] for tgt in ([4, 5, 6, 7], [6, 4, 5, 7]))
    assert torch.allclose(one, other, atol=1e-5) != has_order


def test_a_distance_without_direction_cannot_see_a_reversal():
    """alibi is symmetric: 你打我 and its reversal 我打你 differ by their end mark only."""
    torch.testing.assert_close(*memories("alibi", [2, 1, 0]), atol=1e-5, rtol=1e-5)
    permuted, memory = memories("alibi", [2, 1, 0, 3])
    assert not torch.allclose(permuted, memory, atol=1e-3)

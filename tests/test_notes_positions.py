"""What the study notes say about positions, fact by fact, with the notes' own numbers, seen in our own code.

Which note teaches what stands in the README, under "From the notes to the code"; where a note is loose, the test holds
what is true and says so.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dragoman.masks import key_padding_mask
from dragoman.model.attention import Attention
from dragoman.model.position import POSITIONS, Position, PositionConfig, sinusoid
from dragoman.model.transformer import ModelConfig, Transformer

ABSOLUTE = ("integer", "unit", "sinusoidal", "learned")  # change the words
RELATIVE = ("rope", "t5", "transformer_xl", "alibi")  # change the scores


def scheme(kind: str, *, d_model: int = 16, n_heads: int = 2, length: int = 32) -> Position:
    torch.manual_seed(1)
    return POSITIONS[kind](
        PositionConfig(kind=kind, length=length), d_model=d_model, n_heads=n_heads, causal=False
    )


def encoding(kind: str, positions: Tensor, d_model: int = 16) -> Tensor:
    """What the scheme adds to the words at these positions: (T, D)."""
    with torch.no_grad():
        return scheme(kind, d_model=d_model).embed(torch.zeros(1, len(positions), d_model), positions)[0]


def frequencies(d_model: int, base: float) -> Tensor:
    """Those of the encoding, read off position 1: the angle of each (sine, cosine)."""
    sine, cosine = sinusoid(torch.tensor([1]), d_model, base)[0].unflatten(0, (-1, 2)).T
    return torch.atan2(sine, cosine)


# How positional encodings came about


def test_numbering_words_by_integers_has_no_bound_and_leaves_what_training_has_seen():
    seen = encoding("integer", torch.arange(20))
    longer = encoding("integer", torch.arange(1000))
    assert seen.max() == 19
    assert longer.max() == 999  # as large as the text is long
    assert (longer[20:].amax(1) > seen.max()).all()
    assert encoding("sinusoidal", torch.arange(1000)).abs().max() <= 1


def test_squeezing_positions_into_the_unit_interval_makes_the_step_depend_on_the_length():
    """0 is the first place and 1 the last, so the same two neighbours are nearer to each other in a longer text."""
    x = torch.zeros(1, 5, 4)
    short, long = (scheme("unit", d_model=4, length=n).embed(x, torch.arange(5))[0, :, 0] for n in (5, 9))
    assert short.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert long.tolist() == [0, 0.125, 0.25, 0.375, 0.5]


# The sinusoidal encoding


def test_the_table_for_d_4_and_base_10000():
    """The notes cut 0.99995 off to 0.9999, all other entries are rounded to four places."""
    noted = torch.tensor(
        [
            [0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999],
            [0.9093, -0.4161, 0.0200, 0.9998],
        ]
    )
    found = sinusoid(torch.arange(3), 4, 10000.0)
    cut_off = torch.zeros(3, 4, dtype=torch.bool)
    cut_off[1, 3] = True
    assert torch.equal((found[~cut_off] * 1e4).round(), (noted[~cut_off] * 1e4).round())
    assert found[1, 3].item() == pytest.approx(0.99995, abs=1e-7)
    assert found[1, 2].item() == pytest.approx(0.0099998, abs=1e-7)
    assert found[2, 2].item() == pytest.approx(0.0199986, abs=1e-6)  # noted with its seventh place off by one


@pytest.mark.parametrize("base", [10000.0, 1000.0, 100.0])
def test_the_divisors_for_d_8_are_the_base_to_0_a_quarter_a_half_and_three_quarters(base):
    divisors = 1 / frequencies(8, base)
    torch.testing.assert_close(divisors, torch.tensor([base**0, base**0.25, base**0.5, base**0.75]))


def test_for_d_model_512_there_are_256_frequencies_in_equal_ratios():
    found = frequencies(512, 10000.0)
    assert len(found) == 256  # i from 0 to 255
    expected = 10000.0 ** (-2 * np.arange(256) / 512)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)
    wavelengths = 2 * math.pi / found
    assert wavelengths[0].item() == pytest.approx(2 * math.pi)
    assert 0.95 < wavelengths[-1].item() / (2 * math.pi * 10000) < 1  # nearly: i never reaches d/2


def test_fifty_positions_of_512_dimensions_are_those_that_the_notes_compute():
    position = np.arange(50).reshape(-1, 1)
    divided = np.exp(np.arange(0, 512, 2) * -(np.log(10000.0) / 512)) * position
    found = sinusoid(torch.arange(50), 512, 10000.0).numpy()
    assert found.shape == (50, 512)
    np.testing.assert_allclose(found[:, 0::2], np.sin(divided), atol=1e-5)
    np.testing.assert_allclose(found[:, 1::2], np.cos(divided), atol=1e-5)


def test_a_larger_base_slows_the_low_frequencies_and_never_the_highest():
    """The notes' table of bases lets the highest frequency slow down too; its divisor is base^0 = 1 for every base."""
    small, middle, large = (frequencies(8, base) for base in (100.0, 1000.0, 10000.0))
    assert small[0] == middle[0] == large[0]
    assert (small[1:] > middle[1:]).all()
    assert (middle[1:] > large[1:]).all()


def test_every_position_has_an_encoding_of_its_own():
    table = sinusoid(torch.arange(2000), 64, 10000.0).double()
    apart = torch.cdist(table, table) + 9 * torch.eye(2000)
    assert apart.min() > 0.1


def test_encodings_are_bounded_however_far_the_position():
    far = sinusoid(torch.tensor([0, 10, 10**3, 10**6]), 64, 10000.0)
    assert far.abs().max() <= 1


def test_encodings_are_deterministic_and_the_same_in_sentences_of_every_length():
    assert not list(scheme("sinusoidal").parameters())
    once, again = encoding("sinusoidal", torch.arange(10)), encoding("sinusoidal", torch.arange(50))
    assert torch.equal(once, again[:10])


@pytest.mark.parametrize("k", [1, 7, 100])
def test_the_encoding_of_pos_plus_k_is_that_of_pos_rotated_by_k_alone(k):
    d_model = 32
    rotation = torch.zeros(d_model, d_model, dtype=torch.float64)
    for i in range(d_model // 2):
        angle = k / 10000 ** (2 * i / d_model)
        rotation[2 * i, 2 * i : 2 * i + 2] = torch.tensor([math.cos(angle), math.sin(angle)])
        rotation[2 * i + 1, 2 * i : 2 * i + 2] = torch.tensor([-math.sin(angle), math.cos(angle)])
    pos = torch.arange(300)
    rotated = sinusoid(pos, d_model, 10000.0).double() @ rotation.T
    torch.testing.assert_close(sinusoid(pos + k, d_model, 10000.0).double(), rotated, atol=1e-4, rtol=0)


def by_distance(scores: Tensor) -> Tensor:
    """How far the entries of one distance are from each other, at most: (T, T) -> a number."""
    diagonals = [scores.diagonal(k) for k in range(-len(scores) + 2, len(scores) - 1)]
    return torch.stack([d.max() - d.min() for d in diagonals]).max()


def test_dot_products_of_encodings_depend_on_the_distance_only_and_not_on_its_direction():
    table = sinusoid(torch.arange(40), 64, 10000.0)
    products = table @ table.T
    assert by_distance(products) < 1e-4
    torch.testing.assert_close(products, products.T)
    assert products[0, 0] == 32  # d/2, and less for every other distance
    assert products[0, 1:].max() < 32


def test_a_random_linear_map_in_between_destroys_the_pattern_of_distances():
    """It is what the W_q and W_k of an attention are, before they have learnt anything."""
    table = sinusoid(torch.arange(40), 64, 10000.0)
    torch.manual_seed(1)
    between = torch.randn(64, 64) / 8
    assert by_distance(table @ between @ table.T) > 1
    layer = Attention(64, 1, score="dot", dropout=0.0)
    with torch.no_grad():
        scores = layer.score(layer.q(table)[None, None], layer.kv(table)[None, None, :, :64])[0, 0]
    assert by_distance(scores) > 1


# Absolute, relative and rotary positions


@pytest.mark.parametrize("kind", ["none", *ABSOLUTE, *RELATIVE])
def test_absolute_positions_decorate_the_words_and_relative_ones_the_scores(kind):
    position = scheme(kind).layer()
    x, q, k = torch.randn(1, 6, 16), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    at = torch.arange(6)
    changes_words = not torch.equal(position.embed(x, at), x)
    changes_scores = not torch.equal(position.rotate(q, at), q) or position.bias(q, k, at, at) is not None
    assert (changes_words, changes_scores) == (kind in ABSOLUTE, kind in RELATIVE)


@pytest.mark.parametrize("kind", [*ABSOLUTE, *RELATIVE])
def test_weights_of_relative_positions_stay_where_the_whole_sentence_moves(kind):
    position = scheme(kind)
    torch.manual_seed(2)
    layer = Attention(16, 2, score="scaled_dot", dropout=0.0, position=position.layer()).eval()
    x = torch.randn(1, 6, 16)

    def weights(positions: Tensor) -> Tensor:
        embedded = position.embed(x, positions)
        q, k = layer.q(embedded), layer.kv(embedded)[..., :16]
        q, k = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in (q, k))
        q, k = layer.position.rotate(q, positions), layer.position.rotate(k, positions)
        bias = layer.position.bias(q, k, positions, positions)
        return (layer.score(q, k) + (0 if bias is None else bias)).softmax(-1)

    with torch.no_grad():
        here, there = weights(torch.arange(6)), weights(torch.arange(6) + 9)
        torch.testing.assert_close(here, layer.weights(*2 * [position.embed(x, torch.arange(6))]))
    moved = (here - there).abs().max()
    assert moved < 1e-5 if kind in RELATIVE else moved > 1e-4


def test_learned_positions_are_a_matrix_of_n_by_d_that_training_changes():
    position = scheme("learned", d_model=16, length=50)
    (table,) = position.parameters()
    assert table.shape == (50, 16)
    position.embed(torch.zeros(1, 3, 16), torch.tensor([0, 1, 4])).sum().backward()
    assert table.grad.abs().sum(1).nonzero().flatten().tolist() == [0, 1, 4]


def test_rotary_positions_multiply_and_leave_the_length_of_a_vector_alone():
    position, q = scheme("rope"), torch.randn(1, 2, 6, 8)
    rotated = position.rotate(q, torch.arange(6))
    torch.testing.assert_close(rotated.norm(dim=-1), q.norm(dim=-1))
    torch.testing.assert_close(position.rotate(2 * q, torch.arange(6)), 2 * rotated)
    assert torch.equal(rotated[:, :, 0], q[:, :, 0])


def test_t5_adds_one_learned_number_to_each_score():
    position, at = scheme("t5"), torch.arange(6)
    with torch.no_grad():
        position.table.copy_(torch.arange(64.0).view(32, 2))
    q, k = torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    bias = position.bias(q, k, at, at)
    assert torch.equal(bias, position.bias(q + 1, k - 1, at, at))  # whatever the words are
    by_head = bias[0, 0]
    assert len(by_head.unique()) == 11  # a number for each distance from -5 to 5
    assert by_distance(by_head) == 0


def test_the_scores_of_words_with_positions_are_four_terms_and_only_one_is_free_of_positions():
    """(X + P) Wq Wk^T (X + P)^T. The notes drop the last factor, X^T, of their third term."""
    torch.manual_seed(1)
    layer = Attention(16, 1, score="dot", dropout=0.0)
    for linear in (layer.q, layer.kv):
        torch.nn.init.zeros_(linear.bias)
    x = torch.randn(1, 6, 16)
    wq, wk = layer.q.weight.T, layer.kv.weight[:16].T

    def scores(embedded: Tensor) -> Tensor:
        return layer.score(layer.q(embedded)[:, None], layer.kv(embedded)[:, None, :, :16])[0, 0]

    p = encoding("sinusoidal", torch.arange(6))
    words, word_place, place_word, places = (
        a @ wq @ wk.T @ b.T for a, b in itertools.product((x[0], p), repeat=2)
    )
    with torch.no_grad():
        torch.testing.assert_close(scores(x), words)
        whole = scores(scheme("sinusoidal").embed(x, torch.arange(6)))
        torch.testing.assert_close(whole, words + word_place + place_word + places, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(whole, words + places, atol=0.1)


# Why they are needed: 我打你, 你打我


def memories(kind: str, order: Tensor) -> tuple[Tensor, Tensor]:
    """Of a permuted source, and that of the source, permuted afterwards."""
    torch.manual_seed(1)
    small = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_encoder_layers": 2, "n_decoder_layers": 1}
    config = ModelConfig(**small, position=PositionConfig(kind=kind))
    model = Transformer(config, src_vocab_size=12, tgt_vocab_size=12).eval()
    src = torch.arange(4, 4 + len(order))[None]
    padding = key_padding_mask(src)
    with torch.no_grad():
        return model.encode(src[:, order], padding), model.encode(src, padding)[:, order]


@pytest.mark.parametrize("kind", list(POSITIONS))
def test_permuting_the_source_permutes_the_memory_where_there_are_no_positions_and_only_there(kind):
    permuted, memory = memories(kind, torch.tensor([3, 1, 0, 4, 2]))
    assert torch.allclose(permuted, memory, atol=1e-5) == (kind == "none")


@pytest.mark.parametrize("kind", ["integer", "unit"])
def test_a_number_on_every_component_is_what_layer_norm_takes_away_so_it_stands_on_one(kind):
    x, positions = torch.randn(1, 5, 16), torch.arange(5)
    normalised = functional.layer_norm(x, (16,))
    torch.testing.assert_close(
        functional.layer_norm(x + positions[:, None], (16,)), normalised, atol=1e-5, rtol=1e-5
    )
    marked = functional.layer_norm(scheme(kind, d_model=16).embed(x, positions), (16,))
    assert not torch.allclose(marked[:, 1:], normalised[:, 1:], atol=1e-4)


def test_a_distance_without_a_direction_cannot_tell_a_sentence_from_its_reverse():
    """你打我 is 我打你 backwards. For alibi, which counts both directions alike, only the end mark tells them apart."""
    permuted, memory = memories("alibi", torch.tensor([2, 1, 0]))
    torch.testing.assert_close(permuted, memory, atol=1e-5, rtol=1e-5)
    permuted, memory = memories("alibi", torch.tensor([2, 1, 0, 3]))
    assert not torch.allclose(permuted, memory, atol=1e-3)

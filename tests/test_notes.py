"""What the study notes say about attention, masks and layers, fact by fact, seen in our own code.

The numbers are the notes' own. Positions are in test_notes_positions.py, words, sentences and translating in
test_notes_translating.py. Which note teaches what stands in the README, under "From the notes to the code"; where a
note is loose, the test holds what is true and says so.
"""

import pytest
import torch
from torch import Tensor, nn

from dragoman.masks import causal_attn_mask, key_padding_mask, padding_attn_mask
from dragoman.model.attention import SCORES, Attention
from dragoman.model.embedding import Embedding
from dragoman.model.layers import FeedForward, Residual
from dragoman.special import PAD

HIDDEN = float("-inf")


def attention(d_model: int = 16, n_heads: int = 1, score: str = "scaled_dot") -> Attention:
    """One with weights as training begins, and without biases: the notes have none."""
    torch.manual_seed(1)
    layer = Attention(d_model, n_heads, score=score, dropout=0.0).eval()
    for linear in (layer.q, layer.kv, layer.out):
        nn.init.zeros_(linear.bias)
    return layer.requires_grad_(False)


def bare(d_model: int, score: str = "scaled_dot") -> Attention:
    """One whose projections change nothing: what it is given are Q, K and V themselves."""
    layer = attention(d_model, score=score)
    layer.q.weight.copy_(torch.eye(d_model))
    layer.kv.weight.copy_(torch.eye(d_model).repeat(2, 1))
    layer.out.weight.copy_(torch.eye(d_model))
    return layer


# Attention as a weighted mean: waist 51, 56, 58 -> weight 40, 43, 48; what does a waist of 57 weigh?


def test_waist_57_is_the_mean_of_all_weights_by_how_near_their_waists_are():
    """Score -(q - k)^2 / 2. What of it depends on k is q k - k^2 / 2: the dot product of (q, 1) and (k, -k^2 / 2)."""
    waists, weights = torch.tensor([51.0, 56.0, 58.0]), torch.tensor([40.0, 43.0, 48.0])
    naive = (43 + 48) / 2
    assert naive == 45.5
    layer = bare(3, "dot")
    layer.kv.weight[:3] = torch.diag(
        torch.tensor([1.0, 1.0, 0.0])
    )  # the third component is the value, no key
    layer.kv.weight[3:] = torch.diag(torch.tensor([0.0, 0.0, 1.0]))
    key_value = torch.stack((waists, -(waists**2) / 2, weights), dim=1)[None]
    query = torch.tensor([[[57.0, 1.0, 0.0]]])
    alpha = layer.weights(query, key_value).flatten()
    torch.testing.assert_close(alpha, (-((57 - waists) ** 2) / 2).softmax(0))
    assert alpha.sum() == 1
    assert 0 < alpha[0] < 1e-7 < alpha[1] == alpha[2]  # every key counts, the far one hardly
    found = layer(query, key_value)[0, 0, 2]
    torch.testing.assert_close(found, (alpha * weights).sum())
    assert found.item() == pytest.approx(
        naive, abs=1e-5
    )  # 56 and 58 are as near, so little is left to change


def test_the_raw_example_of_two_queries_saturates_even_when_scaled():
    q = torch.tensor([[[57.0, 83.0], [76.0, 55.0]]])
    k = torch.tensor([[[51.0, 70.0], [58.0, 88.0], [56.0, 82.0]]])
    weights = bare(2).weights(q, k)[0, 0]
    largest_key = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    assert torch.equal(
        weights, largest_key
    )  # nothing is left of the others, not even in float32's last place
    v = torch.tensor([[40.0, 55.0], [43.0, 59.0], [48.0, 65.0]])
    assert (weights @ v).tolist() == [
        [43, 59],
        [43, 59],
    ]  # so both queries, unlike as they are, get one answer
    centred = bare(2).weights((q - k.mean(1)) / k.std(1), (k - k.mean(1)) / k.std(1))
    assert centred.max() < 0.999  # inputs of variance 1, as a norm makes them, do not


# Scores


def test_orthogonal_vectors_score_0_and_equal_unit_vectors_1():
    """Note 003 calls the right angle collinear; its cosine is 0, and 1 is that of vectors of one direction."""
    q = torch.tensor([1.0, 0.0])[None, None, None]
    k = torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]])[None, None]
    assert SCORES["dot"](1, 2)(q, k).flatten().tolist() == [0, 1, -1]


@pytest.mark.parametrize("d", [1, 16, 256])
def test_the_variance_of_q_dot_k_is_d_and_1_after_scaling(d):
    """For d = 1 it is the product XY of two standard normals: mean 0 (not the 1 derived on the way), variance 1."""
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 40_000, 1, 1, d, generator=generator)
    dots, scaled = (SCORES[name](1, d)(q, k) for name in ("dot", "scaled_dot"))
    assert dots.mean().item() == pytest.approx(0, abs=0.03 * d**0.5)
    assert dots.var().item() == pytest.approx(d, rel=0.05)
    assert scaled.var().item() == pytest.approx(1, rel=0.05)


def test_unscaled_scores_leave_the_softmax_hardly_any_gradient():
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, 200, 512, generator=generator)
    towards = torch.randn(200, 200, generator=generator)
    gradient, largest = {}, {}
    for name in ("dot", "scaled_dot"):
        scores = SCORES[name](1, 512)(q, k).requires_grad_()
        weights = scores.softmax(-1)
        (weights * towards).sum().backward()
        gradient[name], largest[name] = scores.grad.norm(dim=-1).median(), weights.amax(-1).median()
    assert largest["dot"] > 0.9 > 0.1 > largest["scaled_dot"]
    assert gradient["dot"] < gradient["scaled_dot"] / 2


def test_the_scale_is_the_root_of_the_head_size_and_not_of_the_number_of_words():
    """512 over 8 heads: d_k = 64. (Note 001 says "number of words".)"""
    layer = attention(512, 8)
    assert layer.d_head == 64
    for n_words in (3, 9):
        q, k = torch.randn(2, 1, 8, n_words, 64)
        torch.testing.assert_close(SCORES["scaled_dot"](8, 64)(q, k) * 8, SCORES["dot"](8, 64)(q, k))


def test_the_additive_score_joins_query_and_key_and_puts_a_small_network_over_them():
    layer = attention(score="additive")
    x = torch.randn(1, 5, 16)
    joined = torch.cat((layer.q.weight, layer.kv.weight[:16]), dim=1)  # one matrix for [x_i; x_j]
    expected = torch.tensor(
        [[layer.score.w[0] @ torch.tanh(joined @ torch.cat((a, b))) for b in x[0]] for a in x[0]]
    )
    torch.testing.assert_close(layer.weights(x, x)[0, 0], expected.softmax(-1))


def test_with_two_matrices_the_scores_are_a_quadratic_form_and_need_not_be_symmetric():
    """A = X Wq Wk^T X^T: twice X is four times A. With one matrix for both, j means to i what i means to j."""
    layer, x = attention(score="dot"), torch.randn(1, 5, 16)

    def scores(x: Tensor) -> Tensor:
        return layer.score(layer.q(x)[:, None], layer.kv(x)[:, None, :, :16])[0, 0]

    torch.testing.assert_close(scores(x), x[0] @ (layer.q.weight.T @ layer.kv.weight[:16]) @ x[0].T)
    torch.testing.assert_close(scores(2 * x), 4 * scores(x))
    assert not torch.allclose(scores(x), scores(x).T, atol=0.1)
    layer.kv.weight[:16] = layer.q.weight
    torch.testing.assert_close(scores(x), scores(x).T)


def test_the_softmax_runs_over_each_row_and_not_over_the_whole_matrix():
    weights = attention().weights(*2 * [torch.randn(1, 5, 16)])[0, 0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(5))


def test_any_two_words_meet_in_one_step_however_far_apart():
    layer, x = attention(), torch.randn(1, 300, 16, requires_grad=True)
    layer(x, x)[0, 0].sum().backward()
    assert (x.grad[0].norm(dim=-1) > 0).all()


# Multi-head


def heads(layer: Attention, x: Tensor) -> Tensor:
    """Each head by itself, as the notes write it: Q_i = X W_i^Q ..., then all side by side, then W^O."""
    d, h = layer.q.in_features, layer.n_heads
    matrices = (layer.q.weight, layer.kv.weight[:d], layer.kv.weight[d:])
    found = []
    for wq, wk, wv in zip(*(w.chunk(h) for w in matrices), strict=True):
        q, k, v = x @ wq.T, x @ wk.T, x @ wv.T
        found.append((q @ k.transpose(-2, -1) / (d // h) ** 0.5).softmax(-1) @ v)
    return torch.cat(found, -1) @ layer.out.weight.T


def test_one_projection_that_is_split_afterwards_equals_a_projection_for_each_head():
    layer, x = attention(16, 4), torch.randn(2, 5, 16)
    torch.testing.assert_close(layer(x, x), heads(layer, x))


def test_splitting_the_input_before_projecting_it_keeps_each_head_from_seeing_the_whole_word():
    layer, x = attention(16, 4), torch.randn(2, 5, 16)
    own_part = torch.block_diag(*[torch.ones(4, 4)] * 4)

    def split_first(x: Tensor) -> Tensor:
        found = []
        for at, part in zip(torch.arange(16).chunk(4), x.chunk(4, -1), strict=True):
            wq, wk, wv = (w[at][:, at] for w in (layer.q.weight, layer.kv.weight[:16], layer.kv.weight[16:]))
            q, k, v = part @ wq.T, part @ wk.T, part @ wv.T
            found.append((q @ k.transpose(-2, -1) / 2).softmax(-1) @ v)
        return layer.out(torch.cat(found, -1))

    assert not torch.allclose(split_first(x), layer(x, x), atol=0.1)
    layer.q.weight *= own_part  # what is lost: everything but the blocks on the diagonal
    layer.kv.weight *= own_part.repeat(2, 1)
    torch.testing.assert_close(split_first(x), layer(x, x))


def test_in_cross_attention_the_decoder_asks_and_the_encoder_answers():
    layer, tgt, memory = attention(16, 2), torch.randn(1, 3, 16), torch.randn(1, 7, 16)
    assert layer.weights(tgt, memory).shape == (
        1,
        2,
        3,
        7,
    )  # a row for each target word, a column for each source
    values = layer.kv(memory)[..., 16:].unflatten(-1, (2, 8)).transpose(1, 2)
    mixed = (layer.weights(tgt, memory) @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(tgt, memory), layer.out(mixed))


# The gradient by hand


def test_twice_the_gradient_of_w_v_derived_by_hand_is_autograds():
    """Note 002 writes it under W^Q, and without the 2 that the square brings down."""
    layer = attention(8).double()
    x, y = torch.randn(2, 1, 5, 8, dtype=torch.float64)
    layer.out.weight.copy_(torch.eye(8))
    layer.kv.weight.requires_grad_()
    out = layer(x, x)
    ((out - y) ** 2).sum().backward()
    with torch.no_grad():
        by_hand = x[0].T @ layer.weights(x, x)[0, 0].T @ (out - y)[0]
    torch.testing.assert_close(layer.kv.weight.grad[8:].T, 2 * by_hand)


# Masks


SCORED = torch.tensor([[1.0, 2, 3, 4], [2, 1, 0, 3], [0, 2, 1, 2], [3, 1, 4, 2]])  # the notes' Q K^T


def test_the_causal_mask_of_four_words():
    blocked = [
        [False, True, True, True],
        [False, False, True, True],
        [False, False, False, True],
        [False] * 4,
    ]
    assert torch.equal(causal_attn_mask(4, 4)[0, 0], ~torch.tensor(blocked))
    assert torch.equal(causal_attn_mask(4, 4)[0, 0], ~torch.triu(torch.ones(4, 4), diagonal=1).bool())


@pytest.mark.parametrize("score", ["dot", "scaled_dot"])
def test_the_four_by_four_example_under_the_causal_mask(score):
    masked = torch.tensor(
        [[1, HIDDEN, HIDDEN, HIDDEN], [2, 1, HIDDEN, HIDDEN], [0, 2, 1, HIDDEN], [3, 1, 4, 2]]
    )
    q = SCORED if score == "dot" else SCORED * 2  # sqrt(4) is divided out again
    layer, q, k = bare(4, score), q[None], torch.eye(4)[None]
    torch.testing.assert_close(layer.weights(q, k, causal=True)[0, 0], masked.softmax(-1))
    torch.testing.assert_close(
        layer(q, k, causal=True)[0], masked.softmax(-1)
    )  # V = 1: the weights themselves
    torch.testing.assert_close(layer(q, k, causal_attn_mask(4, 4))[0], masked.softmax(-1))


def test_the_mask_comes_before_the_softmax_and_not_after():
    layer, k = bare(4, "dot"), torch.eye(4)[None]
    before = layer.weights(SCORED[None], k, causal=True)[0, 0]
    after = SCORED.softmax(-1) * causal_attn_mask(4, 4)[0, 0]
    assert before.sum(-1).tolist() == pytest.approx([1, 1, 1, 1])
    assert after.sum(-1)[0] < 0.04  # the first word would keep 3 % of itself
    louder = SCORED + 5 * torch.ones(4, 4).triu(1)  # only what is hidden
    torch.testing.assert_close(layer.weights(louder[None], k, causal=True)[0, 0], before)
    assert not torch.allclose(louder.softmax(-1) * causal_attn_mask(4, 4)[0, 0], after, atol=0.1)


def test_the_padding_mask_of_a_sequence_of_three_beside_one_of_four():
    s1, s2 = torch.tensor([[1.0, 1, 1], [2, 3, 5]]), torch.tensor([[1.0, 1, 1, 8], [2, 3, 5, 10]])
    words = Embedding(8, 2).requires_grad_(False)
    words.table.weight[4:] = s2.T / words.scale
    ids = torch.tensor([[4, 5, 6, PAD], [4, 5, 6, 7]])
    padded = torch.cat((s1, torch.zeros(2, 1)), dim=1)
    torch.testing.assert_close(words(ids), torch.stack((padded, s2)).transpose(1, 2))
    padding = key_padding_mask(ids)
    assert padding.tolist() == [
        [False, False, False, True],
        [False] * 4,
    ]  # (batch, length), whatever d_model is
    layer, x = bare(2), words(ids)
    alone, together = layer(x[:1, :3], x[:1, :3]), layer(x, x, padding_attn_mask(padding))
    torch.testing.assert_close(together[:1, :3], alone)
    assert (layer.weights(x, x)[0, 0, :3, 3] > 0).all()  # without the mask, nothing has a share of its own


def test_behind_the_causal_mask_padding_at_the_right_needs_no_mask_of_its_own():
    """The notes give the decoder both masks. No real word looks to its right, so the second one changes nothing."""
    layer, x = attention(), torch.randn(1, 5, 16)
    padding = torch.tensor([[False, False, False, True, True]])
    both = layer.weights(x, x, padding_attn_mask(padding), causal=True)
    torch.testing.assert_close(both[..., :3, :], layer.weights(x, x, causal=True)[..., :3, :])


# Add & Norm, feed-forward


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layer_norm_looks_at_each_position_by_itself(norm):
    """Over d_model, and not over the whole sentence, as note 003 has it."""
    residual = Residual(64, dropout=0.0, norm=norm, normalization="layer_norm")
    x = 3 * torch.randn(1, 5, 64) + 2
    normed = residual.norm(x)
    torch.testing.assert_close(normed.mean(-1), torch.zeros(1, 5), atol=1e-5, rtol=0)
    torch.testing.assert_close(normed.var(-1, correction=0), torch.ones(1, 5), atol=1e-3, rtol=0)
    louder = x.clone()
    louder[:, 4] *= 100
    assert torch.equal(residual.norm(louder)[:, :4], normed[:, :4])


def test_a_residual_whose_sublayer_does_nothing_hands_on_its_input():
    x = torch.randn(1, 5, 16)
    pre, post = (Residual(16, dropout=0.0, norm=n, normalization="layer_norm") for n in ("pre", "post"))
    assert torch.equal(pre(x, torch.zeros_like), x)
    assert torch.equal(post(x, torch.zeros_like), post.norm(x))


def test_the_feed_forward_is_two_linear_maps_around_an_activation_at_each_position_alone():
    layer, x = FeedForward(16, 64, activation="relu", dropout=0.0), torch.randn(1, 5, 16)
    hidden = (x @ layer.up.weight.T + layer.up.bias).clamp(min=0)
    torch.testing.assert_close(layer(x), hidden @ layer.down.weight.T + layer.down.bias)
    torch.testing.assert_close(layer(x[:, [4, 2, 0, 1, 3]]), layer(x)[:, [4, 2, 0, 1, 3]])

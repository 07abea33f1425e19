"""Attention, masks and layers of the study notes, fact by fact, in our own code.

The numbers are the notes'. Positions are in test_notes_positions.py, words and translating in
test_notes_translating.py. src/dragoman/README.md, "From the notes to the code", says which note teaches what. Where
a note is wrong, the test checks the correct statement, and its docstring says so.
"""

import pytest
import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.explain import notes
from dragoman.explain.cost import count_flops, count_parameters
from dragoman.explain.notes import bare
from dragoman.model.attention import SCORES, Attention, causal_attn_mask, padding_attn_mask
from dragoman.model.position import Position
from dragoman.model.transformer import Embedding, FeedForward, Residual, Transformer
from dragoman.special import PAD

HIDDEN = float("-inf")


def attention(d_model: int = 16, n_heads: int = 1, score: str = "scaled_dot") -> Attention:
    """A new layer without biases: the notes have none."""
    torch.manual_seed(1)
    layer = Attention(ModelConfig(d_model=d_model, n_heads=n_heads, score=score)).eval()
    for linear in (layer.q, layer.kv, layer.out):
        nn.init.zeros_(linear.bias)
    return layer.requires_grad_(False)


def layer_config(**settings: object) -> ModelConfig:
    return ModelConfig(d_model=16, d_ff=64, dropout=0.0, **settings)  # type: ignore[arg-type]


# Attention as a weighted mean. Keys: waists 51, 56, 58. Values: weights 40, 43, 48. Query: a waist of 57.


def test_waist_57_is_a_mean_weighted_by_nearness():
    values = notes.waist()
    alpha = values["alpha"]
    torch.testing.assert_close(alpha, values["scores"].softmax(0))
    assert alpha.sum().item() == pytest.approx(1)
    assert 0 < alpha[0] < 1e-7 < alpha[1] == alpha[2]  # each key has a weight, the distant one almost none
    torch.testing.assert_close(values["result"], (alpha * torch.tensor([40.0, 43.0, 48.0])).sum())
    # 56 and 58 are equally near, so the notes' first guess, (43 + 48) / 2, is nearly right.
    assert values["result"].item() == pytest.approx(45.5, abs=1e-5)


def test_raw_numbers_saturate_the_softmax_even_scaled():
    values = notes.matrices()
    torch.testing.assert_close(values["scores"] * 2**0.5, values["q"] @ values["k"].T)
    assert torch.equal(values["weights"], torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]))
    assert values["output"].tolist() == [[43, 59], [43, 59]]  # different queries, equal outputs


# Scores


def test_orthogonal_vectors_score_0_and_equal_ones_1():
    """Note 003 calls orthogonal vectors collinear; unit vectors score their cosine."""
    q = torch.tensor([1.0, 0.0])[None, None, None]
    k = torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]])[None, None]
    assert SCORES["dot"](1, 2)(q, k).flatten().tolist() == [0, 1, -1]


@pytest.mark.parametrize("d", [1, 64])
def test_the_variance_of_q_dot_k_is_d_and_1_when_scaled(d):
    """XY, the product of two standard normals, has mean 0 (note: 1) and variance 1."""
    q, k = torch.randn(2, 40_000, 1, 1, d, generator=torch.Generator().manual_seed(1))
    dots, scaled = (SCORES[name](1, d)(q, k) for name in ("dot", "scaled_dot"))
    assert dots.mean().item() == pytest.approx(0, abs=0.03 * d**0.5)
    assert dots.var().item() == pytest.approx(d, rel=0.05)
    assert scaled.var().item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("d", [32, 64])
def test_unscaled_scores_saturate_the_softmax(d):
    """The notes conclude that gradients vanish; W_q's is larger at these head sizes."""
    largest, gradient = {}, {}
    for score in ("dot", "scaled_dot"):
        layer = attention(d, score=score).requires_grad_()
        x, direction = torch.randn(2, 2, 100, d, generator=torch.Generator().manual_seed(1))
        (layer(x, x) * direction).sum().backward()
        largest[score] = bare(d, score).weights(x, direction).amax(-1).median()
        gradient[score] = layer.q.weight.grad.norm()
    assert largest["dot"] > 0.5 > 0.15 > largest["scaled_dot"]
    assert gradient["dot"] > 2 * gradient["scaled_dot"]


GRADIENTS = [(8, 100, True), (32, 100, True), (64, 100, False), (512, 100, False), (32, 20, False), (64, 200, True)]


def test_the_gradient_of_scores_shrinks_in_large_heads_only():
    """The median gradient of the scores of a query, for random q, k and v."""
    for d, n_keys, grows in GRADIENTS:
        norms = {}
        for name in ("dot", "scaled_dot"):
            q, k, v, direction = torch.randn(4, 1, 1, n_keys, d, generator=torch.Generator().manual_seed(1))
            scores = SCORES[name](1, d)(q, k).requires_grad_()
            ((scores.softmax(-1) @ v) * direction).sum().backward()
            norms[name] = scores.grad.norm(dim=-1).median()
        assert (norms["dot"] > norms["scaled_dot"]) == grows, (d, n_keys)


@pytest.mark.parametrize("d", [1, 4])
def test_q_dot_k_is_normal_only_for_many_components(d):
    """Note 003 calls q.k normal, and XY chi-squared. The kurtosis is 3 + 6/d, not 3."""
    q, k = torch.randn(2, 1_000_000, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    dots = (q * k).sum(-1)
    assert (dots < 0).double().mean().item() == pytest.approx(0.5, abs=0.01)
    assert ((dots**4).mean() / (dots**2).mean() ** 2).item() == pytest.approx(3 + 6 / d, abs=0.6)


def test_scores_of_a_new_layer_have_variance_two_thirds():
    """K and V are one (d, 2d) matrix: Xavier makes K smaller by the root of 2/3."""
    torch.manual_seed(1)
    small = {"d_model": 256, "n_heads": 4, "n_encoder_layers": 1, "n_decoder_layers": 1}
    layer = Transformer(ModelConfig(**small), src_vocab_size=9, tgt_vocab_size=9).encoder[0].self_attention
    x = torch.randn(1, 200, 256)
    q, k = (project(x)[..., :256].unflatten(-1, (4, 64)).transpose(1, 2) for project in (layer.q, layer.kv))
    assert layer.score(q, k).var().item() == pytest.approx(2 / 3, rel=0.1)


def test_one_outlier_leaves_little_to_all_other_scores():
    """Note 001: the softmax is sensitive to outliers and suppresses what is small."""
    scores, weights = (
        torch.zeros(100),
        lambda: bare(1, "dot").weights(torch.ones(1, 1, 1), scores[None, :, None])[0, 0, 0],
    )
    assert weights().max() < 0.011
    scores[7] = 10.0
    assert weights()[:7].sum() + weights()[8:].sum() < 0.005


def test_the_scale_is_the_root_of_the_head_size():
    """512 over 8 heads: d_k = 64. Note 001 says "number of words"."""
    layer = attention(512, 8)
    assert layer.d_head == 64
    assert layer.q.weight.chunk(8)[0].shape == (64, 512)  # D_out x D_in of one head
    for n_words in (3, 9):
        q, k = torch.randn(2, 1, 8, n_words, 64)
        torch.testing.assert_close(layer.score(q, k) * 8, q @ k.transpose(-2, -1))


def test_the_additive_score_is_a_small_network_on_q_and_k():
    """w^T tanh(W [x_i; x_j]) (Bahdanau et al. 2015), each head with its own w."""
    layer, x = attention(n_heads=2, score="additive"), torch.randn(1, 5, 16)
    for head, part in enumerate(torch.arange(16).chunk(2)):
        joined = torch.cat((layer.q.weight[part], layer.kv.weight[part]), dim=1)
        pairs = torch.stack([torch.stack([torch.cat((a, b)) for b in x[0]]) for a in x[0]])  # (5, 5, 32)
        scores = torch.tanh(pairs @ joined.T) @ layer.score.w[head]
        torch.testing.assert_close(layer.weights(x, x)[0, head], scores.softmax(-1))


def test_the_additive_score_of_note_002_ignores_the_query():
    """The note's score is w1 tanh(q) + w2 tanh(k); the softmax cancels the first term."""
    q, k, w1, w2 = torch.randn(5, 8), torch.randn(6, 8), torch.randn(8), torch.randn(8)
    noted = (torch.tanh(q) @ w1)[:, None] + torch.tanh(k) @ w2
    torch.testing.assert_close(noted.softmax(-1), (torch.tanh(k) @ w2).softmax(0).expand(5, 6))
    ours = SCORES["additive"](1, 8)(q[None, None], k[None, None])[0, 0].softmax(-1)
    assert not torch.allclose(ours, ours[:1].expand(5, 6), atol=0.01)


def test_two_matrices_make_an_asymmetric_quadratic_form():
    """A = X Wq Wk^T X^T is four times as large for 2 X, and symmetric for Wq = Wk."""
    layer, x = attention(score="dot"), torch.randn(1, 5, 16)

    def scores(x: Tensor) -> Tensor:
        return layer.score(layer.q(x)[:, None], layer.kv(x)[:, None, :, :16])[0, 0]

    torch.testing.assert_close(scores(x), x[0] @ (layer.q.weight.T @ layer.kv.weight[:16]) @ x[0].T)
    torch.testing.assert_close(scores(2 * x), 4 * scores(x))
    assert not torch.allclose(scores(x), scores(x).T, atol=0.1)
    layer.kv.weight[:16] = layer.q.weight
    torch.testing.assert_close(scores(x), scores(x).T)


def test_the_softmax_runs_over_each_row():
    weights = attention().weights(*2 * [torch.randn(1, 5, 16)])[0, 0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(5))


def test_any_two_words_meet_in_one_step():
    layer, x = attention(), torch.randn(1, 300, 16, requires_grad=True)
    layer(x, x)[0, 0].sum().backward()
    assert (x.grad[0].norm(dim=-1) > 0).all()


# Multi-head


def head_by_head(layer: Attention, x: Tensor) -> Tensor:
    """Each head alone, as in the notes: Q_i = X W_i^Q ...; then concatenation and W^O."""
    d, h = layer.q.in_features, layer.n_heads
    matrices = (layer.q.weight, layer.kv.weight[:d], layer.kv.weight[d:])
    heads = []
    for wq, wk, wv in zip(*(w.chunk(h) for w in matrices), strict=True):
        q, k, v = x @ wq.T, x @ wk.T, x @ wv.T
        heads.append((q @ k.transpose(-2, -1) / (d // h) ** 0.5).softmax(-1) @ v)
    return torch.cat(heads, -1) @ layer.out.weight.T


def test_one_projection_then_split_equals_one_per_head():
    layer, x = attention(16, 4), torch.randn(2, 5, 16)
    torch.testing.assert_close(layer(x, x), head_by_head(layer, x))


def test_splitting_the_input_first_hides_most_of_each_word():
    layer, x = attention(16, 4), torch.randn(2, 5, 16)

    def split_first(x: Tensor) -> Tensor:
        heads = []
        for at, part in zip(torch.arange(16).chunk(4), x.chunk(4, -1), strict=True):
            wq, wk, wv = (w[at][:, at] for w in (layer.q.weight, layer.kv.weight[:16], layer.kv.weight[16:]))
            q, k, v = part @ wq.T, part @ wk.T, part @ wv.T
            heads.append((q @ k.transpose(-2, -1) / 2).softmax(-1) @ v)
        return layer.out(torch.cat(heads, -1))

    assert not torch.allclose(split_first(x), layer(x, x), atol=0.1)
    own_part = torch.block_diag(*[torch.ones(4, 4)] * 4)  # the blocks that are left
    layer.q.weight *= own_part
    layer.kv.weight *= own_part.repeat(2, 1)
    torch.testing.assert_close(split_first(x), layer(x, x))


def test_many_heads_cost_what_one_costs():
    """Note 004 expects many heads to be faster."""
    one, many = (Transformer(ModelConfig(n_heads=h), src_vocab_size=99, tgt_vocab_size=99) for h in (1, 8))
    assert count_flops(one, 4, 9, 9, 36) == count_flops(many, 4, 9, 9, 36)
    assert count_parameters(one) == count_parameters(many)


def test_heads_at_fixed_distances_are_a_convolution():
    """Attention is the CNN of note 003 if head h attends h - 1 positions ahead only."""

    class Offsets(Position):
        def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
            ahead = k_positions - q_positions[:, None]
            return torch.stack([torch.where(ahead == h - 1, 0.0, -1e9) for h in range(3)])

    layer, x = attention(12, 3), torch.randn(1, 9, 12)
    layer.position = Offsets(layer_config().position, d_model=12, n_heads=3, causal=False)
    outs, values = layer.out.weight.chunk(3, dim=1), layer.kv.weight[12:].chunk(3)
    kernel = torch.stack([out @ value for out, value in zip(outs, values, strict=True)], dim=-1)  # (D, D, 3)
    expected = nn.functional.conv1d(x.transpose(1, 2), kernel, layer.out.bias).transpose(1, 2)
    torch.testing.assert_close(layer(x, x)[:, 1:-1], expected, atol=1e-5, rtol=1e-5)


def test_cross_attention_takes_k_and_v_from_the_encoder():
    layer, tgt, memory = attention(16, 2), torch.randn(1, 3, 16), torch.randn(1, 7, 16)
    assert layer.weights(tgt, memory).shape == (1, 2, 3, 7)  # target words x source words
    values = layer.kv(memory)[..., 16:].unflatten(-1, (2, 8)).transpose(1, 2)
    mixed = (layer.weights(tgt, memory) @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(tgt, memory), layer.out(mixed))


# The gradient by hand


def test_the_gradient_of_w_v_by_hand_is_half_of_autograds():
    """Note 002 calls it the gradient of W^Q, without the squared error's factor 2."""
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

SCORED = notes.mask()["scores"]  # the notes' Q K^T


def test_the_causal_mask_of_four_words():
    blocked = [[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert torch.equal(causal_attn_mask(4, 4)[0, 0], ~torch.tensor(blocked).bool())
    assert torch.equal(causal_attn_mask(4, 4)[0, 0], ~torch.triu(torch.ones(4, 4), diagonal=1).bool())


@pytest.mark.parametrize("score", ["dot", "scaled_dot"])
def test_the_four_by_four_example_under_the_causal_mask(score):
    masked = torch.tensor([[1, HIDDEN, HIDDEN, HIDDEN], [2, 1, HIDDEN, HIDDEN], [0, 2, 1, HIDDEN], [3, 1, 4, 2]])
    q = SCORED if score == "dot" else SCORED * 2  # 2 = sqrt(4), by which the score divides
    layer, q, k = bare(4, score), q[None], torch.eye(4)[None]
    torch.testing.assert_close(layer.weights(q, k, causal=True)[0, 0], masked.softmax(-1))
    assert torch.equal(notes.mask()["masked"], masked)
    # V = 1: the outputs are the weights.
    torch.testing.assert_close(layer(q, k, causal=True)[0], masked.softmax(-1))
    torch.testing.assert_close(layer(q, k, causal_attn_mask(4, 4))[0], masked.softmax(-1))


def test_the_mask_comes_before_the_softmax():
    layer, k = bare(4, "dot"), torch.eye(4)[None]
    before, after = notes.mask()["before"], notes.mask()["after"]
    torch.testing.assert_close(before.sum(-1), torch.ones(4))
    assert after.sum(-1)[0] < 0.04  # the weights of the first word would sum to 3 %
    louder = SCORED + 5 * torch.ones(4, 4).triu(1)  # only the hidden scores
    torch.testing.assert_close(layer.weights(louder[None], k, causal=True)[0, 0], before)
    assert not torch.allclose(louder.softmax(-1) * causal_attn_mask(4, 4)[0, 0], after, atol=0.1)


def test_the_padding_mask_of_three_words_beside_four():
    s1, s2 = torch.tensor([[1.0, 1, 1], [2, 3, 5]]), torch.tensor([[1.0, 1, 1, 8], [2, 3, 5, 10]])
    words = Embedding(8, 2).requires_grad_(False)
    words.table.weight[4:] = s2.T / words.scale
    ids = torch.tensor([[4, 5, 6, PAD], [4, 5, 6, 7]])
    padded = torch.cat((s1, torch.zeros(2, 1)), dim=1)
    torch.testing.assert_close(words(ids), torch.stack((padded, s2)).transpose(1, 2))
    padding = ids == PAD
    assert padding.tolist() == [[False, False, False, True], [False] * 4]  # (batch, length) for any d_model
    layer, x = bare(2), words(ids)
    alone, together = layer(x[:1, :3], x[:1, :3]), layer(x, x, padding_attn_mask(padding))
    torch.testing.assert_close(together[:1, :3], alone)
    assert (layer.weights(x, x)[0, 0, :3, 3] > 0).all()  # without the mask even a vector of zeros has a weight


@pytest.mark.parametrize("tie", ["all", "tgt", "none"])
def test_the_padding_vector_is_trained_if_the_output_shares_it(tie):
    """The padding vector starts at 0; the softmax of a shared output gives a gradient."""
    model = Transformer(layer_config(tie=tie), src_vocab_size=9, tgt_vocab_size=9)
    table = model.tgt_embedding.table.weight
    assert not table[PAD].any()
    ids, padding = torch.tensor([[4, PAD]]), torch.tensor([[False, True]])
    model(ids, ids, padding).logsumexp(-1).sum().backward()
    assert table.grad[PAD].any() == (tie != "none")


def test_the_causal_mask_hides_padding_at_the_right():
    """The notes use both masks; the padding mask changes nothing for real words."""
    layer, x = attention(), torch.randn(1, 5, 16)
    padding = torch.tensor([[False, False, False, True, True]])
    both = layer.weights(x, x, padding_attn_mask(padding), causal=True)
    torch.testing.assert_close(both[..., :3, :], layer.weights(x, x, causal=True)[..., :3, :])
    assert not both[..., 3:].any()  # with both masks, padding does not attend to padding either


# Add & Norm, feed-forward


def test_layer_norm_takes_each_position_alone():
    """Mean and variance are over d_model, not over the sentence as in note 003."""
    norm = Residual(layer_config()).norm
    x = 3 * torch.randn(1, 5, 16) + 2
    torch.testing.assert_close(norm(x).mean(-1), torch.zeros(1, 5), atol=1e-5, rtol=0)
    torch.testing.assert_close(norm(x).var(-1, correction=0), torch.ones(1, 5), atol=1e-3, rtol=0)
    louder = x.clone()
    louder[:, 4] *= 100
    assert torch.equal(norm(louder)[:, :4], norm(x)[:, :4])


def test_add_and_norm_in_both_orders():
    """Post: norm(x + f(x)). Pre: x + f(norm(x)), which is x if f returns zeros."""
    x = torch.randn(1, 5, 16)
    pre, post = (Residual(layer_config(norm=norm)) for norm in ("pre", "post"))
    torch.testing.assert_close(pre(x, torch.sin), x + torch.sin(pre.norm(x)))
    torch.testing.assert_close(post(x, torch.sin), post.norm(x + torch.sin(x)))
    assert torch.equal(pre(x, torch.zeros_like), x)


@pytest.mark.parametrize(("norm", "lowest", "highest"), [("pre", 0.999, 1.001), ("post", 2**-5, 2**-3)])
def test_post_norm_divides_the_free_path_in_every_layer(norm, lowest, highest):
    """Each norm of variance 2 divides the gradient of the residual path by sqrt(2)."""
    torch.manual_seed(1)
    stack = [Residual(layer_config(norm=norm)) for _ in range(8)]
    y = x = torch.randn(1, 2000, 16, requires_grad=True)
    for residual in stack:
        y = residual(y, torch.randn_like)
    direction = torch.randn_like(y)
    (y * direction).sum().backward()
    assert lowest < x.grad.norm() / direction.norm() < highest


def test_the_feed_forward_is_two_maps_around_an_activation():
    layer, x = FeedForward(layer_config(activation="relu")), torch.randn(1, 5, 16)
    hidden = (x @ layer.up.weight.T + layer.up.bias).clamp(min=0)
    torch.testing.assert_close(layer(x), hidden @ layer.down.weight.T + layer.down.bias)
    torch.testing.assert_close(layer(x[:, [4, 2, 0, 1, 3]]), layer(x)[:, [4, 2, 0, 1, 3]])  # each word alone

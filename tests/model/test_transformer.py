"""What must hold for the Transformer whatever its weights are."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.masks import causal_attn_mask, key_padding_mask
from dragoman.model.layers import NORMALIZATIONS
from dragoman.model.position import POSITIONS
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.special import BOS, EOS, PAD
from networks import CHOICES, V, at_rest, make, sentences

# Whatever goes through the stacks goes through all of these.
CONFIGS = [
    *CHOICES,
    *(
        {"activation": activation, "tie": tie}
        for activation, tie in itertools.product(("relu", "gelu", "swiglu"), ("none", "tgt", "all"))
    ),
]
every = pytest.mark.parametrize("changes", CONFIGS, ids=lambda c: "-".join(c.values()))


@every
def test_a_later_target_token_changes_nothing_before_it(changes):
    model = at_rest(changes)
    src, tgt = sentences(2, 5), sentences(2, 6)
    other = tgt.clone()
    other[:, 4] = (tgt[:, 4] - 4 + 1) % (V - 4) + 4
    before, after = (model(src, t, key_padding_mask(src)) for t in (tgt, other))
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@every
def test_more_padding_changes_no_logit_of_a_real_token(changes):
    model = at_rest(changes)
    src, tgt = sentences(2, 5), sentences(2, 4)
    wide_src = torch.cat((src, torch.full((2, 3), PAD)), 1)
    wide_tgt = torch.cat((tgt, torch.full((2, 2), PAD)), 1)
    narrow = model(src, tgt, key_padding_mask(src))
    wide = model(wide_src, wide_tgt, key_padding_mask(wide_src))
    torch.testing.assert_close(wide[:, :4], narrow, atol=1e-5, rtol=1e-5)


@every
def test_gradients_are_finite_and_one_step_lowers_the_loss_of_a_batch(changes):
    model = make(**changes).eval()
    src, tgt = sentences(4, 6), sentences(4, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.003)

    def loss() -> Tensor:
        return nn.functional.cross_entropy(
            model(src, tgt, key_padding_mask(src)).flatten(0, 1), tgt.flatten()
        )

    first = loss()
    first.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), f"{name} takes no part"
    optimizer.step()
    assert loss() < first


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("kind", POSITIONS)
def test_half_precision_runs_forward_and_backward_and_lands_near(kind, normalization):
    model = make(position=kind, normalization=normalization).eval()
    src, tgt = sentences(4, 6), sentences(4, 5)
    padding = key_padding_mask(src)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(src, tgt, padding)
    expected = model(src, tgt, padding)
    assert (found - expected).norm() < 0.05 * expected.norm()
    found.float().logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", POSITIONS)
def test_positions_told_are_the_positions_used(kind):
    model = at_rest({"position": kind})
    src, tgt = sentences(2, 6), sentences(2, 5)
    padding = key_padding_mask(src)
    memory = model.encode(src, padding)
    counted = torch.arange(6)
    told = model.encode(src, padding, positions=counted.expand(2, 6))
    torch.testing.assert_close(told, memory, atol=1e-5, rtol=1e-5)
    states = model.states(tgt, memory, padding)
    told = model.states(tgt, memory, padding, positions=counted[:5].expand(2, 5))
    torch.testing.assert_close(told, states, atol=1e-5, rtol=1e-5)
    other = torch.stack((counted, counted.flip(0)))  # each row has positions of its own
    told = model.encode(src, padding, positions=other)
    torch.testing.assert_close(told[0], memory[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        told[1], model.encode(src[1:].flip(1), padding[1:])[0].flip(0), atol=1e-5, rtol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "score"), [*((kind, "scaled_dot") for kind in POSITIONS), ("t5", "additive")]
)
def test_torch_compile_sees_one_graph_that_serves_every_length(kind, score):
    model = make(position=kind, score=score).eval()
    graphs = []
    torch._dynamo.reset()  # it keeps few versions of one piece of code

    def count(graph: torch.fx.GraphModule, _: object) -> Callable:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=count, fullgraph=True, dynamic=True)
    for length in (5, 7, 9):
        src = sentences(2, length)
        padding = key_padding_mask(src)
        torch.testing.assert_close(compiled(src, src, padding), model(src, src, padding))
    assert len(graphs) == 1


def test_what_stands_under_the_padding_mask_changes_nothing():
    model = make().eval()
    src, tgt = sentences(2, 6), sentences(2, 4)
    padding = torch.zeros_like(src, dtype=torch.bool)
    padding[:, 4:] = True
    other = src.clone()
    other[:, 4:] = 7
    torch.testing.assert_close(model(src, tgt, padding), model(other, tgt, padding))


def test_a_sentence_does_not_see_the_others_of_its_batch():
    model = make().eval()
    src, tgt = sentences(4, 6), sentences(4, 5)
    together = model(src, tgt, key_padding_mask(src))
    alone = torch.cat(
        [model(src[i : i + 1], tgt[i : i + 1], key_padding_mask(src[i : i + 1])) for i in range(4)]
    )
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


PERMUTED = list(itertools.product(POSITIONS, ("pre", "post"), NORMALIZATIONS))


@pytest.mark.parametrize(("kind", "norm", "normalization"), PERMUTED)
def test_without_positions_a_permuted_source_gives_the_permuted_memory_and_with_them_it_does_not(
    kind, norm, normalization
):
    model = at_rest({"position": kind, "norm": norm, "normalization": normalization, "score": "scaled_dot"})
    src, order = sentences(1, 6), torch.tensor([3, 1, 5, 0, 2, 4])
    padding = key_padding_mask(src)
    permuted, memory = model.encode(src[:, order], padding), model.encode(src, padding)
    assert torch.allclose(permuted, memory[:, order], atol=1e-2) == (kind == "none")
    if kind == "none":
        torch.testing.assert_close(permuted, memory[:, order], atol=1e-5, rtol=1e-5)


def copy_attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
    d = theirs.embed_dim
    with torch.no_grad():
        ours.q.weight.copy_(theirs.in_proj_weight[:d])
        ours.q.bias.copy_(theirs.in_proj_bias[:d])
        ours.kv.weight.copy_(theirs.in_proj_weight[d:])
        ours.kv.bias.copy_(theirs.in_proj_bias[d:])
        ours.out.load_state_dict(theirs.out_proj.state_dict())


def copy_layer(ours: nn.Module, theirs: nn.Module) -> None:
    copy_attention(ours.self_attention, theirs.self_attn)
    if hasattr(theirs, "multihead_attn"):
        copy_attention(ours.cross_attention, theirs.multihead_attn)
    ours.feed_forward.up.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.down.load_state_dict(theirs.linear2.state_dict())
    for n, residual in enumerate(ours.residuals, 1):
        residual.norm.load_state_dict(getattr(theirs, f"norm{n}").state_dict())


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_our_stacks_equal_torch_nn_transformer_with_its_weights(norm, activation):
    ours = make(norm=norm, activation=activation, dropout=0.0, position="none")
    theirs = nn.Transformer(
        16, 2, 1, 2, 24, dropout=0.0, activation=activation, batch_first=True, norm_first=norm == "pre"
    )
    for stack, other in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        for layer, other_layer in zip(stack, other.layers, strict=True):
            copy_layer(layer, other_layer)
    if norm == "pre":
        ours.encoder_norm.load_state_dict(theirs.encoder.norm.state_dict())
        ours.decoder_norm.load_state_dict(theirs.decoder.norm.state_dict())
    else:
        theirs.encoder.norm = theirs.decoder.norm = None  # the paper has none after the last layer
    src, tgt = sentences(3, 7), sentences(3, 5)
    src[0, 5:] = PAD
    padding = key_padding_mask(src)
    expected = theirs(
        ours.src_embedding(src),
        ours.src_embedding(tgt),
        tgt_mask=~causal_attn_mask(5, 5)[0, 0],  # torch's own polarity: True = blocked
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )
    found = ours.states(tgt, ours.encode(src, padding), padding)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("tie", "n_matrices"), [("none", 3), ("tgt", 2), ("all", 1)])
def test_tying_leaves_as_many_vocabulary_matrices_as_it_says(tie, n_matrices):
    model = make(tie=tie)
    assert len([p for p in model.parameters() if p.size(0) == V]) == n_matrices


def test_training_mode_drops_out_and_evaluation_does_not():
    model = make(dropout=0.5)
    src, tgt = sentences(2, 5), sentences(2, 5)
    assert not torch.equal(*(model.train()(src, tgt, key_padding_mask(src)) for _ in range(2)))
    assert torch.equal(*(model.eval()(src, tgt, key_padding_mask(src)) for _ in range(2)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_heads": 5}, "model.n_heads=5 does not divide model.d_model=16"),
        ({"d_ff": 0}, "model.d_ff=0"),
        ({"dropout": 1.0}, "model.dropout=1.0"),
        ({"norm": "prenorm"}, "did you mean 'pre'"),
        ({"activation": "rellu"}, "did you mean 'relu'"),
        ({"tie": "both"}, "model.tie=both"),
        (
            {"score": "scaleddot"},
            "model.score=scaleddot: choose one of scaled_dot, dot, additive .*'scaled_dot'",
        ),
        ({"normalization": "rmsnorm"}, "choose one of layer_norm, rms_norm .did you mean 'rms_norm'"),
        ({"position": "rope", "d_model": 15, "n_heads": 5}, "heads of 3: change n_heads"),
    ],
)
def test_impossible_shapes_are_refused_by_key(changes, words):
    with pytest.raises(UserError, match=words):
        make(**changes)


def test_one_matrix_for_two_vocabularies_is_refused():
    with pytest.raises(UserError, match="vocabulary=joint"):
        Transformer(ModelConfig(tie="all"), src_vocab_size=10, tgt_vocab_size=11)


def test_special_ids_are_not_words():
    assert len({PAD, BOS, EOS}) == 3
    assert (PAD, BOS, EOS) == (0, 2, 3)

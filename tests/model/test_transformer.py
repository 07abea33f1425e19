"""Properties of the Transformer that hold for any weights."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dragoman.model.attention import SCORES, causal_attn_mask
from dragoman.model.position import POSITIONS
from dragoman.special import PAD

# One choice varied at a time around the baseline.
CONFIGS: list[dict[str, str]] = [
    *({"position": kind} for kind in POSITIONS),
    *({"score": score} for score in SCORES if score != "scaled_dot"),
    {"norm": "post"},
    {"normalization": "rms_norm"},
    *({"activation": activation} for activation in ("gelu", "swiglu")),
    *({"tie": tie} for tie in ("none", "tgt")),
]
every = pytest.mark.parametrize("changes", CONFIGS, ids=lambda c: "-".join(c.values()))


@every
def test_a_later_target_token_changes_nothing_before_it(changes, model, ids):
    network = model(**changes).eval()
    src, tgt = ids(2, 5), ids(2, 6)
    other = tgt.clone()
    other[:, 4] = (tgt[:, 4] - 4 + 1) % 36 + 4
    before, after = (network(src, t, src == PAD) for t in (tgt, other))
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@every
def test_padding_changes_no_logit_of_a_token(changes, model, ids):
    network = model(**changes).eval()
    src, tgt = ids(2, 5), ids(2, 4)
    wide_src = torch.cat((src, torch.full((2, 3), PAD)), 1)
    wide_tgt = torch.cat((tgt, torch.full((2, 2), PAD)), 1)
    narrow = network(src, tgt, src == PAD)
    wide = network(wide_src, wide_tgt, wide_src == PAD)
    torch.testing.assert_close(wide[:, :4], narrow, atol=1e-5, rtol=1e-5)


@every
def test_every_parameter_has_a_gradient_that_helps(changes, model, ids):
    network = model(**changes).eval()
    src, tgt = ids(4, 6), ids(4, 5)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.003)

    def loss() -> Tensor:
        logits = network(src, tgt, src == PAD)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tgt.flatten())

    first = loss()
    first.backward()
    for name, parameter in [(name, p) for name, p in network.named_parameters() if p.requires_grad]:
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), f"{name} has no gradient"
    optimizer.step()
    assert loss() < first


@pytest.mark.parametrize("kind", ["sinusoidal", "rope", "t5", "transformer_xl"])
def test_bf16_autocast_gives_nearly_the_same(kind, model, ids):
    network = model(position=kind).eval()
    src, tgt = ids(4, 6), ids(4, 5)
    padding = src == PAD
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(src, tgt, padding)
    expected = network(src, tgt, padding)
    assert (logits - expected).norm() < 0.05 * expected.norm()
    logits.float().logsumexp(-1).sum().backward()
    assert all(p.grad.isfinite().all() for p in network.parameters() if p.requires_grad)


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
def test_ours_equals_torch_nn_transformer(norm, activation, model, ids):
    ours = model(norm=norm, activation=activation, dropout=0.0, position="none")
    options = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": norm == "pre"}
    theirs = nn.Transformer(16, 2, 1, 2, 24, **options)
    for stack, other in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        for layer, other_layer in zip(stack, other.layers, strict=True):
            copy_layer(layer, other_layer)
    if norm == "pre":
        ours.encoder_norm.load_state_dict(theirs.encoder.norm.state_dict())
        ours.decoder_norm.load_state_dict(theirs.decoder.norm.state_dict())
    else:
        theirs.encoder.norm = theirs.decoder.norm = None  # the paper has none after the last layer
    src, tgt = ids(3, 7), ids(3, 5)
    src[0, 5:] = PAD
    padding = src == PAD
    masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
    masks["tgt_mask"] = ~causal_attn_mask(5, 5)[0, 0]  # torch's own polarity: True = blocked
    expected = theirs(ours.src_embedding(src), ours.src_embedding(tgt), **masks)
    states = ours.decode(tgt, ours.encode(src, padding), padding)
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)


def test_feed_forward_is_its_formula(model):
    formulas = {
        "relu": lambda layer, x: layer.up(x).clamp(min=0),
        "gelu": lambda layer, x: layer.up(x) * (1 + torch.erf(layer.up(x) / 2**0.5)) / 2,
        "swiglu": lambda layer, x: layer.gate(x) * layer.gate(x).sigmoid() * layer.up(x),
    }
    for name, formula in formulas.items():
        layer, x = model(activation=name).encoder[0].feed_forward.eval(), torch.randn(1, 5, 16)
        torch.testing.assert_close(layer(x), layer.down(formula(layer, x)))


def test_tie_shares_vocabulary_matrices(model):
    for tie, n_matrices in {"none": 3, "tgt": 2, "all": 1}.items():
        assert len([p for p in model(tie=tie).parameters() if p.size(0) == 40 and p.dim() == 2]) == n_matrices


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_dropout_follows_every_sublayer(n, norm, model):
    residual = model(norm=norm, dropout=0.5).decoder[0].residuals[n]
    x, sublayer = torch.randn(1, 50, 16), torch.ones_like
    kept = residual.eval()(x, sublayer)
    dropped = residual.train()(x, sublayer)
    if norm == "pre":
        values = torch.where(torch.isclose(dropped - x, torch.tensor(0.0), atol=1e-6), 0, dropped - x)
        assert sorted(values.round(decimals=4).unique().tolist()) == [0, 2]
    else:
        assert not torch.allclose(dropped, kept)


@pytest.mark.parametrize(("stack", "share"), [("encoder", 0.5), ("decoder", 0.5), ("decoder", 0.0)])
def test_dropout_follows_the_embeddings(stack, share, model, ids):
    network, inputs = model(dropout=share, d_model=64).train(), []
    getattr(network, stack)[0].register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    network(ids(4, 20), ids(4, 20), None)
    assert (inputs[0] == 0).float().mean().item() == pytest.approx(share, abs=0.05)


def test_evaluation_mode_is_deterministic(model, ids):
    network = model(dropout=0.5, activation_dropout=0.5, attention_dropout=0.5).eval()
    assert torch.equal(*(network(ids(2, 5), ids(2, 5), None) for _ in range(2)))


@pytest.mark.parametrize("place", ["activation_dropout", "attention_dropout"])
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_each_dropout_has_its_own_switch(place, score, model, ids):
    network = model(**{"dropout": 0.0, place: 0.5, "score": score}).train()
    assert not torch.equal(*(network(ids(2, 5), ids(2, 5), None) for _ in range(2)))


def test_only_tables_of_positions_have_a_limit(model):
    limits = {kind: model(position=kind).max_positions for kind in POSITIONS}
    assert {kind: limit for kind, limit in limits.items() if limit} == {"unit": 32, "sentence_unit": 32, "learned": 32}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sinusoidal", "rope", "t5", "transformer_xl"])
def test_torch_compile_makes_one_graph_for_every_length(kind, model, ids):
    network, graphs = model(position=kind).eval(), []
    torch._dynamo.reset()

    def count(graph: torch.fx.GraphModule, _: object) -> Callable:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(network, backend=count, fullgraph=True, dynamic=True)
    for length in (5, 7, 9):
        src = ids(2, length)
        padding = src == PAD
        torch.testing.assert_close(compiled(src, src, padding), network(src, src, padding))
    assert len(graphs) == 1

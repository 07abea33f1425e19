"""What must hold for the Transformer whatever its weights are."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.masks import causal_attn_mask, key_padding_mask
from dragoman.model.cache import DecoderCache
from dragoman.model.position import PositionConfig
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.special import BOS, EOS, PAD

V = 40
CONFIGS = [
    {"norm": norm, "activation": activation, "tie": tie}
    for norm, activation, tie in itertools.product(
        ("pre", "post"), ("relu", "gelu", "swiglu"), ("none", "tgt", "all")
    )
]


def make(**changes: object) -> Transformer:
    torch.manual_seed(1)
    small = {"d_model": 32, "d_ff": 64, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 2}
    return Transformer(ModelConfig(**{**small, **changes}), src_vocab_size=V, tgt_vocab_size=V)


def sentences(n: int, length: int, seed: int = 3) -> Tensor:
    return torch.randint(4, V, (n, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("changes", CONFIGS, ids=lambda c: "-".join(c.values()))
def test_decoding_token_by_token_with_a_cache_gives_the_logits_of_teacher_forcing(changes):
    model = make(**changes).eval()
    src, tgt = sentences(3, 7), sentences(3, 6)
    src[1, 4:] = PAD
    padding = key_padding_mask(src)
    at_once = model(src, tgt, padding)
    cache = DecoderCache(2, model.encode(src, padding), padding)
    steps = [model.decode(tgt[:, t : t + 1], cache.memory, padding, cache=cache) for t in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1), at_once, atol=1e-5, rtol=1e-5)


def test_a_cache_fed_several_tokens_at_once_gives_the_same_logits_too():
    model = make().eval()
    src, tgt = sentences(2, 5), sentences(2, 6)
    padding = key_padding_mask(src)
    cache = DecoderCache(2, model.encode(src, padding), padding)
    parts = [model.decode(part, cache.memory, padding, cache=cache) for part in (tgt[:, :2], tgt[:, 2:])]
    torch.testing.assert_close(torch.cat(parts, 1), model(src, tgt, padding), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("changes", CONFIGS, ids=lambda c: "-".join(c.values()))
def test_a_later_target_token_changes_nothing_before_it(changes):
    model = make(**changes).eval()
    src, tgt = sentences(2, 5), sentences(2, 6)
    other = tgt.clone()
    other[:, 4] = (tgt[:, 4] - 4 + 1) % (V - 4) + 4
    before, after = (model(src, t, key_padding_mask(src)) for t in (tgt, other))
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_more_padding_changes_no_logit_of_a_real_token(norm):
    model = make(norm=norm).eval()
    src, tgt = sentences(2, 5), sentences(2, 4)
    wide_src = torch.cat((src, torch.full((2, 3), PAD)), 1)
    wide_tgt = torch.cat((tgt, torch.full((2, 2), PAD)), 1)
    narrow = model(src, tgt, key_padding_mask(src))
    wide = model(wide_src, wide_tgt, key_padding_mask(wide_src))
    torch.testing.assert_close(wide[:, :4], narrow, atol=1e-5, rtol=1e-5)


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


def test_without_positions_a_permuted_source_gives_the_permuted_memory_and_with_them_it_does_not():
    src, order = sentences(1, 6), torch.tensor([3, 1, 5, 0, 2, 4])
    padding = key_padding_mask(src)
    blind = make(position=PositionConfig(kind="none")).eval()
    torch.testing.assert_close(
        blind.encode(src[:, order], padding), blind.encode(src, padding)[:, order], atol=1e-5, rtol=1e-5
    )
    seeing = make().eval()
    assert not torch.allclose(
        seeing.encode(src[:, order], padding), seeing.encode(src, padding)[:, order], atol=1e-2
    )


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
    ours = make(norm=norm, activation=activation, dropout=0.0, position=PositionConfig(kind="none"))
    theirs = nn.Transformer(
        32, 4, 2, 2, 64, dropout=0.0, activation=activation, batch_first=True, norm_first=norm == "pre"
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


@pytest.mark.parametrize("changes", CONFIGS, ids=lambda c: "-".join(c.values()))
def test_gradients_are_finite_and_one_step_lowers_the_loss_of_a_batch(changes):
    model = make(**changes)
    src, tgt = sentences(4, 6), sentences(4, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss() -> Tensor:
        return nn.functional.cross_entropy(
            model(src, tgt, key_padding_mask(src)).flatten(0, 1), tgt.flatten()
        )

    model.eval()
    first = loss()
    first.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    optimizer.step()
    assert loss() < first


def test_training_mode_drops_out_and_evaluation_does_not():
    model = make(dropout=0.5)
    src, tgt = sentences(2, 5), sentences(2, 5)
    assert not torch.equal(*(model.train()(src, tgt, key_padding_mask(src)) for _ in range(2)))
    assert torch.equal(*(model.eval()(src, tgt, key_padding_mask(src)) for _ in range(2)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_heads": 5}, "model.n_heads=5 does not divide model.d_model=32"),
        ({"d_ff": 0}, "model.d_ff=0"),
        ({"dropout": 1.0}, "model.dropout=1.0"),
        ({"norm": "prenorm"}, "did you mean 'pre'"),
        ({"activation": "rellu"}, "did you mean 'relu'"),
        ({"tie": "both"}, "model.tie=both"),
        ({"score": "scaleddot"}, "did you mean 'scaled_dot'"),
    ],
)
def test_impossible_shapes_are_refused_by_key(changes, words):
    with pytest.raises(UserError, match=words):
        make(**changes)


def test_an_unknown_position_names_the_choices():
    with pytest.raises(UserError, match="sinusoidal"):
        PositionConfig(kind="sinusodial")


def test_one_matrix_for_two_vocabularies_is_refused():
    with pytest.raises(UserError, match="vocabulary=joint"):
        Transformer(ModelConfig(tie="all"), src_vocab_size=10, tgt_vocab_size=11)


def test_special_ids_are_not_words():
    assert len({PAD, BOS, EOS}) == 3
    assert (PAD, BOS, EOS) == (0, 2, 3)

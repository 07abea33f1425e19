"""Attention maps are the weights that the model uses, and leave no trace on it."""

import pytest
import torch

from dragoman.explain.attention_map import attended
from dragoman.special import EOS

SRC, TGT = [11, 7, 23, 5], [9, 14, 6]


def test_maps_hold_distributions_of_every_head(make_model, tokenizer) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        maps = attended(make_model(), (tokenizer, tokenizer), SRC, TGT).maps
    shapes = {name: tuple(weights.shape) for name, weights in maps.items()}
    assert shapes == {"encoder": (2, 4, 5, 5), "decoder": (3, 4, 4, 4), "cross": (3, 4, 4, 5)}
    for weights in maps.values():
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert maps["decoder"].triu(1).eq(0).all()


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_weights_times_values_give_the_output(score, make_model, tokenizer) -> None:
    model = make_model(score=score).eval()
    attentions = [layer.cross_attention for layer in model.decoder]
    calls: list[tuple[torch.Tensor, torch.Tensor]] = []
    for attention in attentions:
        attention.register_forward_hook(lambda _, args, output: calls.append((args[1], output)))
    maps = attended(model, (tokenizer, tokenizer), SRC, TGT).maps["cross"]
    for weights, attention, (key_value, output) in zip(maps, attentions, calls, strict=True):
        values = attention.kv(key_value)[0, :, 32:].unflatten(-1, (4, 8)).transpose(0, 1)
        torch.testing.assert_close(attention.out((weights @ values).transpose(0, 1).flatten(1)), output[0])


def test_model_is_left_as_it_was(make_model, tokenizer) -> None:
    model = make_model(attention_dropout=0.3).train()
    random = torch.get_rng_state()
    attended(model, (tokenizer, tokenizer), SRC, TGT)
    with pytest.raises(IndexError):
        attended(model, (tokenizer, tokenizer), [9999], TGT)
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_pieces_name_the_axes(make_model, tokenizer) -> None:
    ids = tokenizer.encode_batch(["我爱你。", "I love you."])
    result = attended(make_model(), (tokenizer, tokenizer), *ids)
    pieces = result.pieces
    assert result.maps["cross"].shape[-2:] == (len(pieces["tgt_out"]), len(pieces["src"]))
    assert pieces["tgt_in"][1:] == pieces["tgt_out"][:-1]
    assert pieces["src"][-1] == pieces["tgt_out"][-1] == tokenizer.pieces([EOS])[0]

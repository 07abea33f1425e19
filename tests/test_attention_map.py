"""attention_map shows the weights that the model really used, and leaves no trace."""

import pytest
import torch

from dragoman.attention_map import attention_map
from dragoman.model.attention import Attention
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.special import BOS, EOS

SRC = torch.tensor([[11, 7, 23, 5, EOS]])
TGT = torch.tensor([[BOS, 9, 14, 6]])


def make_model(norm: str = "pre") -> Transformer:
    torch.manual_seed(3)
    sizes = {"d_model": 32, "d_ff": 64, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 3}
    config = ModelConfig(**sizes, attention_dropout=0.3, norm=norm)
    return Transformer(config, src_vocab_size=40, tgt_vocab_size=40)


def test_every_layer_and_head_is_there() -> None:
    maps = attention_map(make_model(), SRC, TGT)
    assert {name: tuple(weights.shape) for name, weights in maps.items()} == {
        "encoder": (2, 4, 5, 5),
        "decoder": (3, 4, 4, 4),
        "cross": (3, 4, 4, 5),
    }


def test_each_query_spends_its_whole_attention() -> None:
    for weights in attention_map(make_model(), SRC, TGT).values():
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_the_decoder_never_looks_ahead() -> None:
    weights = attention_map(make_model(), SRC, TGT)["decoder"]
    assert weights.triu(1).eq(0).all()
    assert weights.tril().gt(0).sum() == weights.size(0) * weights.size(1) * 10  # and does look back


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_weights_applied_to_the_values_give_what_attention_returned(norm: str) -> None:
    model = make_model(norm).eval()
    calls: dict[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}

    def keep(module: torch.nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        calls[module] = (args[1], output)

    for module in model.modules():
        if isinstance(module, Attention):
            module.register_forward_hook(keep)
    maps = attention_map(model, SRC, TGT)
    stacks = {
        "encoder": [layer.self_attention for layer in model.encoder],
        "decoder": [layer.self_attention for layer in model.decoder],
        "cross": [layer.cross_attention for layer in model.decoder],
    }
    for name, stack in stacks.items():
        for weights, attention in zip(maps[name], stack, strict=True):
            key_value, output = calls[attention]
            value = attention.kv(key_value)[0, :, 32:].unflatten(-1, (4, 8)).transpose(0, 1)
            mixed = (weights @ value).transpose(0, 1).flatten(1)
            torch.testing.assert_close(attention.out(mixed), output[0])


def test_nothing_is_left_on_the_model() -> None:
    model = make_model().train()
    model.encoder[0].eval()  # a part somebody froze
    modes = [module.training for module in model.modules()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    maps = attention_map(model, SRC, TGT)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not any(weights.requires_grad for weights in maps.values())


def test_hooks_and_modes_are_put_back_when_the_model_fails() -> None:
    model = make_model().train()
    with pytest.raises(IndexError):
        attention_map(model, torch.tensor([[999, EOS]]), TGT)
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_rows_sum_to_one_inside_mixed_precision() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = attention_map(make_model(), SRC, TGT)["cross"]
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_more_than_one_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="one pair"):
        attention_map(make_model(), SRC.repeat(2, 1), TGT)

"""Costs, compared with the real model and with torch's FLOP counter."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dragoman.config import ModelConfig, PositionConfig
from dragoman.explain.cost import cost_table, count_flops, count_parameters
from dragoman.model.transformer import Transformer

WORDS = {"src_vocab_size": 70, "tgt_vocab_size": 90}
SHAPE = {"rows": 5, "src": 13, "tgt": 11, "tokens": 55}
# All sizes differ, so that no two are mistaken for each other.
SIZES = {"d_model": 48, "d_ff": 80, "n_heads": 3, "n_encoder_layers": 2, "n_decoder_layers": 3}


def config_of(position: str = "sinusoidal", **settings) -> ModelConfig:
    return ModelConfig(**{**SIZES, "tie": "none", **settings}, position=PositionConfig(kind=position))


def test_parameters_are_those_of_the_real_model() -> None:
    others = {"score": "additive"}, {"activation": "swiglu"}, {"tie": "tgt"}, {"norm": "post"}
    for config in (config_of("learned"), config_of("transformer_xl"), *(config_of(**other) for other in others)):
        model = Transformer(config, **WORDS)
        parameters = count_parameters(model)
        assert sum(parameters.values()) == sum(p.numel() for p in model.parameters() if p.requires_grad), config
        layers = [parameter for layer in model.encoder for parameter in layer.feed_forward.parameters()]
        assert parameters["encoder feed-forward"] == sum(parameter.numel() for parameter in layers), config
        assert parameters["projection"] == (48 * 90 if config.tie == "none" else 0), config
        assert parameters["norms"] > 0


def test_flops_agree_with_torch() -> None:
    src, tgt = (torch.randint(4, 60, (SHAPE["rows"], SHAPE[side])) for side in ("src", "tgt"))
    for config in (config_of(), config_of(activation="swiglu", score="additive")):
        model = Transformer(config, **WORDS)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(src, tgt, torch.zeros_like(src, dtype=torch.bool)).sum().backward()
        flops = sum(count_flops(model, **SHAPE).values())
        assert flops == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_table_shows_every_part_and_the_sums() -> None:
    model = Transformer(config_of("learned", tie="tgt"), **WORDS)
    lines = cost_table(model, [(5, 13, 11, 55), (3, 13, 11, 30)]).splitlines()
    for part, n in (parameters := count_parameters(model)).items():
        (line,) = (line for line in lines if line.startswith(part))
        assert f"{n:,}" in line or (part == "projection" and "tied" in line)
    assert f"{sum(parameters.values()):,}" in lines[-1]

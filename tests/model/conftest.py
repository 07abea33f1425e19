"""Tiny networks with random parameters, for properties that hold for any weights."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig, PositionConfig
from dragoman.model.attention import Attention
from dragoman.model.position import POSITIONS, Position
from dragoman.model.transformer import Transformer

V = 40


def fill_zeros(module: nn.Module) -> None:
    """Randomise parameters that start at zero, which would have no effect in a test."""
    for parameter in module.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3)


def make_model(*, position: str = "sinusoidal", **changes: Any) -> Transformer:
    """A tiny Transformer: model(position="rope", norm="post")."""
    torch.manual_seed(1)
    small = {"d_model": 16, "d_ff": 24, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 2}
    scheme = PositionConfig(kind=position, length=32, n_buckets=8, max_distance=16)
    config = ModelConfig(**{**small, "position": scheme, **changes})
    model = Transformer(config, src_vocab_size=V, tgt_vocab_size=V)
    fill_zeros(model)
    return model


def make_scheme(kind: str, *, causal: bool = False, d_model: int = 8, n_heads: int = 2, **keys: Any) -> Position:
    """A position scheme of one layer."""
    torch.manual_seed(1)
    config = PositionConfig(kind=kind, **keys)
    position = POSITIONS[kind](config, d_model=d_model, n_heads=n_heads, causal=causal).layer()
    fill_zeros(position)
    return position


def make_attention(kind: str = "none", score: str = "scaled_dot", *, causal: bool = False) -> Attention:
    """An attention module with two heads of size 4."""
    position = make_scheme(kind, causal=causal, length=32, n_buckets=8, max_distance=16)
    return Attention(ModelConfig(d_model=8, n_heads=2, score=score), position)


def random_ids(n: int, length: int, seed: int = 3) -> Tensor:
    """Random ids of words, (n, length)."""
    return torch.randint(4, V, (n, length), generator=torch.Generator().manual_seed(seed))


# Functions as fixtures: tests may not import this file.
_shared = {"model": make_model, "scheme": make_scheme, "attention": make_attention, "ids": random_ids}
for _name, _function in _shared.items():
    globals()[f"_{_name}"] = pytest.fixture(name=_name)(lambda function=_function: function)

"""Networks as small as they come, every one of their numbers at random: for tests of what holds whatever they are."""

import functools
import itertools

import torch
from torch import Tensor, nn

from dragoman.model.attention import SCORES, Attention
from dragoman.model.layers import NORMALIZATIONS
from dragoman.model.position import POSITIONS, Position, PositionConfig
from dragoman.model.transformer import ModelConfig, Transformer

V = 40
# Every position x norm x normalization x score; the names of the choices are the names of the tests.
CHOICES = [
    {"position": position, "norm": norm, "normalization": normalization, "score": score}
    for position, norm, normalization, score in itertools.product(
        POSITIONS, ("pre", "post"), NORMALIZATIONS, SCORES
    )
]


def wake(module: nn.Module) -> None:
    """Random numbers where a parameter starts at zero, which would hide that it is there."""
    for parameter in module.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3)


def make(*, position: str | PositionConfig = "sinusoidal", **changes: object) -> Transformer:
    torch.manual_seed(1)
    if isinstance(position, str):
        position = PositionConfig(kind=position, length=32, n_buckets=8, max_distance=16)
    small = {"d_model": 16, "d_ff": 24, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 2}
    config = ModelConfig(**{**small, "position": position, **changes})
    model = Transformer(config, src_vocab_size=V, tgt_vocab_size=V)
    wake(model)
    return model


@functools.cache
def _at_rest(changes: tuple[tuple[str, str], ...]) -> Transformer:
    return make(**dict(changes)).eval().requires_grad_(False)


def at_rest(changes: dict[str, str]) -> Transformer:
    """What `make` makes, once for all tests: look, do not touch."""
    return _at_rest(tuple(changes.items()))


def scheme(kind: str, *, causal: bool = False, d_model: int = 8, n_heads: int = 2, **keys: float) -> Position:
    """A position scheme, its zeros replaced."""
    torch.manual_seed(1)
    config = PositionConfig(kind=kind, **keys)
    position = POSITIONS[kind](config, d_model=d_model, n_heads=n_heads, causal=causal).layer()
    wake(position)
    return position


def attention(kind: str = "none", score: str = "scaled_dot", *, causal: bool = False) -> Attention:
    position = scheme(kind, causal=causal, length=32, n_buckets=8, max_distance=16)
    return Attention(8, 2, score=score, dropout=0.0, position=position)


def sentences(n: int, length: int, seed: int = 3) -> Tensor:
    return torch.randint(4, V, (n, length), generator=torch.Generator().manual_seed(seed))

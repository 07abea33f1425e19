"""Parameters and FLOPs of a model, computed before a run.

Parameters are counted on a meta-device Transformer, so they are exact. FLOPs are those of matrix products, two per
multiply-add, padding included.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from dragoman.config import ModelConfig
from dragoman.model.transformer import Transformer

# Part -> pattern of its parameters' names; the first match counts.
_PARTS = {
    "positions": "position",
    "norms": "norm",
    "embeddings": "embedding",
    "encoder self-attention": r"^encoder.*self_attention",
    "encoder feed-forward": r"^encoder.*feed_forward",
    "decoder self-attention": "self_attention",
    "cross-attention": "cross_attention",
    "decoder feed-forward": "feed_forward",
    "projection": "",
}


class Shape(NamedTuple):
    """Batch of `rows` padded to `src` and `tgt` positions, with `tokens` targets."""

    rows: float
    src: float
    tgt: float
    tokens: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of a model of this configuration."""

    config: ModelConfig
    src_vocab_size: int
    tgt_vocab_size: int

    @cached_property
    def parameters(self) -> dict[str, int]:
        """Trainable parameters of each part; a tied projection has none."""
        sizes = {"src_vocab_size": self.src_vocab_size, "tgt_vocab_size": self.tgt_vocab_size}
        with torch.device("meta"):
            model = Transformer(self.config, **sizes)
        counts = dict.fromkeys(_PARTS, 0)
        for name, parameter in model.named_parameters():
            part = next(part for part, pattern in _PARTS.items() if re.search(pattern, name))
            counts[part] += parameter.numel()
        return counts

    def flops(self, shape: Shape) -> dict[str, float]:
        """Estimate the operations of a training step (forward and backward), by part."""
        c, n, (rows, src, tgt, tokens) = self.config, self.parameters, shape
        # Positions per weight, and query-key pairs of the attention.
        layout = {
            "encoder self-attention": (src, c.n_encoder_layers * src * src),
            "encoder feed-forward": (src, 0),
            "decoder self-attention": (tgt, c.n_decoder_layers * tgt * tgt),
            "cross-attention": ((src + tgt) / 2, c.n_decoder_layers * tgt * src),
            "decoder feed-forward": (tgt, 0),
        }
        forward = {
            part: rows * (2 * n[part] * positions + 4 * pairs * c.d_model)
            for part, (positions, pairs) in layout.items()
        }
        forward["projection"] = 2 * self.tgt_vocab_size * c.d_model * tokens
        return {part: 3 * operations for part, operations in forward.items()}


def table(cost: Cost, shapes: Sequence[Shape]) -> str:
    """Return a text table of the cost; `shapes`: batches of an epoch."""
    parameters, flops = cost.parameters, dict.fromkeys(cost.parameters, 0.0)
    for shape in shapes:
        for part, n in cost.flops(shape).items():
            flops[part] += n
    n_parameters, n_flops = sum(parameters.values()), sum(flops.values())
    millions = 1e6 * sum(shape.tokens for shape in shapes)
    lines = [f"{'part':<24}{'parameters':>14}{'share':>8}{'MFLOPs per target token':>26}{'share':>8}"]
    for part, n in parameters.items():
        if n or flops[part]:
            counts = f"{f'{n:,}' if n else 'tied':>14}{n / n_parameters:>8.1%}"
            lines.append(f"{part:<24}{counts}{flops[part] / millions:>26.2f}{flops[part] / n_flops:>8.1%}")
    lines.append(f"{'all':<24}{n_parameters:>14,}{'':8}{n_flops / millions:>26.2f}")
    return "\n".join(lines)

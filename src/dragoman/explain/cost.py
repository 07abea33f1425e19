"""Parameters and FLOPs of a model, computed before a run.

Parameters are counted on a meta-device Transformer, so they are exact. FLOPs are those of matrix products, two per
multiply-add, padding included.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
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


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of a model of this configuration."""

    config: ModelConfig
    src_vocab_size: int
    tgt_vocab_size: int

    @cached_property
    def parameters(self) -> dict[str, int]:
        """Trainable parameters of each part; a tied projection has none."""
        with torch.device("meta"):
            model = Transformer(self.config, src_vocab_size=self.src_vocab_size, tgt_vocab_size=self.tgt_vocab_size)
        counts = dict.fromkeys(_PARTS, 0)
        for name, parameter in model.named_parameters():
            part = next(part for part, pattern in _PARTS.items() if re.search(pattern, name))
            counts[part] += parameter.numel()
        return counts

    def flops(self, rows: Any, src: Any, tgt: Any, tokens: Any) -> dict[str, Any]:
        """Estimate the operations of a training step (forward and backward), by part.

        The batch has `rows` padded to `src` and `tgt` positions, and `tokens` targets: numbers, or arrays of many.
        """
        c, n = self.config, self.parameters
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


def table(cost: Cost, shapes: Any) -> str:
    """Return a text table of the cost of batches (n, 4): rows, src, tgt, tokens."""
    parameters, shapes = cost.parameters, np.transpose(shapes)
    flops = dict.fromkeys(parameters, 0.0) | {part: float(np.sum(n)) for part, n in cost.flops(*shapes).items()}
    n_parameters, n_flops = sum(parameters.values()), sum(flops.values())
    millions = 1e6 * sum(shapes[-1])
    lines = [f"{'part':<24}{'parameters':>14}{'share':>8}{'MFLOPs per target token':>26}{'share':>8}"]
    for part, n in parameters.items():
        if n or flops[part]:
            counts = f"{f'{n:,}' if n else 'tied':>14}{n / n_parameters:>8.1%}"
            lines.append(f"{part:<24}{counts}{flops[part] / millions:>26.2f}{flops[part] / n_flops:>8.1%}")
    lines.append(f"{'all':<24}{n_parameters:>14,}{'':8}{n_flops / millions:>26.2f}")
    return "\n".join(lines)

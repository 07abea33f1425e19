"""Parameters and FLOPs of a model.

Parameters are counted, so they are exact. FLOPs are those of matrix products, two per multiply-add, padding included.
"""

import re
from typing import Any

import numpy as np

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


def count_parameters(model: Transformer) -> dict[str, int]:
    """Return the numbers of trained parameters by part; a tied projection has none."""
    counts = dict.fromkeys(_PARTS, 0)
    for name, parameter in model.named_parameters():
        part = next(part for part, pattern in _PARTS.items() if re.search(pattern, name))
        counts[part] += parameter.numel() if name != "projection.bias" else 0
    return counts


def count_flops(model: Transformer, rows: Any, src: Any, tgt: Any, tokens: Any) -> dict[str, Any]:
    """Estimate the operations of a training step (forward and backward), by part.

    A batch has `rows` pairs padded to `src` and `tgt` positions, and `tokens` targets; arrays for several.
    """
    c, n = model.config, count_parameters(model)
    # Positions that each weight multiplies (cross-attention: q and out at tgt, k and v at src), and query-key pairs.
    layout = {
        "encoder self-attention": (src, c.n_encoder_layers * src * src),
        "encoder feed-forward": (src, 0),
        "decoder self-attention": (tgt, c.n_decoder_layers * tgt * tgt),
        "cross-attention": ((src + tgt) / 2, c.n_decoder_layers * tgt * src),
        "decoder feed-forward": (tgt, 0),
    }
    forward = {part: rows * (2 * n[part] * length + 4 * pairs * c.d_model) for part, (length, pairs) in layout.items()}
    forward["projection"] = 2 * len(model.possible) * c.d_model * tokens
    return {part: 3 * operations for part, operations in forward.items()}


def cost_table(model: Transformer, shapes: Any) -> str:
    """Return a text table of the cost of batches (n, 4): rows, src, tgt, tokens."""
    parameters, shapes = count_parameters(model), np.transpose(shapes)
    flops = dict.fromkeys(parameters, 0.0) | {part: float(np.sum(n)) for part, n in count_flops(model, *shapes).items()}
    n_parameters, n_flops = sum(parameters.values()), sum(flops.values())
    millions = 1e6 * sum(shapes[-1])
    lines = [f"{'part':<24}{'parameters':>14}{'share':>8}{'MFLOPs per target token':>26}{'share':>8}"]
    for part, n in parameters.items():
        if n or flops[part]:
            counts = f"{f'{n:,}' if n else 'tied':>14}{n / n_parameters:>8.1%}"
            lines.append(f"{part:<24}{counts}{flops[part] / millions:>26.2f}{flops[part] / n_flops:>8.1%}")
    lines.append(f"{'all':<24}{n_parameters:>14,}{'':8}{n_flops / millions:>26.2f}")
    return "\n".join(lines)

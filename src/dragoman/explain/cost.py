"""Parameters, FLOPs and memory of a model, computed before a run.

Parameters are counted on a meta-device Transformer, so they are exact. FLOPs are those of matrix products, two per
multiply-add, padding included. Activations are an estimate of the tensors saved for the backward pass. The memory of
Python, the libraries and the allocator is not included.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from dragoman.config import ModelConfig
from dragoman.model.attention import SCORES
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

    def memory(self, shape: Shape, *, average: bool, width: int, chunk: int) -> dict[str, float]:
        """Estimate the bytes at the end of the forward pass, the peak of a training step.

        `average`: whether a moving average of the weights is kept; `width`: bytes of a number in matrix products;
        `chunk`: positions per chunk of the loss.
        """
        c, weights = self.config, 4 * sum(self.parameters.values())
        src, tgt = shape.rows * shape.src, shape.rows * shape.tgt
        # Saved numbers per position of attention: input and output of the norm, q, k, v, mixed values. Feed-forward
        # saves its hidden layer once or twice. A score without a fused kernel saves D numbers per query-key pair.
        attention, feed_forward = 6 * c.d_model, 2 * c.d_model + 1.5 * c.d_ff
        numbers = c.n_encoder_layers * src * (attention + feed_forward)
        numbers += c.n_decoder_layers * tgt * (2 * attention + feed_forward)
        if not SCORES[c.score].fused:
            pairs = c.n_encoder_layers * src * shape.src + c.n_decoder_layers * tgt * (shape.src + shape.tgt)
            numbers += pairs * c.d_model
        logits = min(chunk, shape.tokens) * self.tgt_vocab_size
        loss = 8 * (logits + (self.tgt_vocab_size + shape.tokens) * c.d_model)
        constant = {"weights": weights, "gradients": weights, "AdamW": 2 * weights}
        return constant | {"average": weights * average, "activations": width * numbers, "loss": loss}


def table(cost: Cost, shapes: Sequence[Shape], *, average: bool, width: int, chunk: int) -> str:
    """Return a text table of the cost; `shapes`: batches of an epoch, longest first."""
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
    memory = cost.memory(shapes[0], average=average, width=width, chunk=chunk)
    listed = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in memory.items() if size)
    longest = "longest batch: {:g} x {:g} to {:g}".format(*shapes[0])
    lines.append(f"memory: about {sum(memory.values()) / 1e6:,.0f} MB: {listed} ({longest})")
    return "\n".join(lines)

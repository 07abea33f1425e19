"""What a model costs before there is one: parameters, floating point operations, memory.

Pure arithmetic on a `ModelConfig`, the sizes of two vocabularies and the shape of a batch. It builds nothing and runs
nothing, and refuses to know corpora, machines and seconds: training/preflight.py measures those.

Operations are counted as torch's FlopCounterMode counts them: matrix products, padding included, 2 for each
multiplication and its addition. Softmax, norms, activations and dropout are left out: little arithmetic, though more
of the time. With additive scores the left-out sums and tanh are as many as one of the two products of attention.
A training step takes three times the products of the forward pass: the gradient of a product is one product for
each of its factors. (Not where a factor has no gradient: the sinusoids that transformer_xl projects.)

Memory is exact for weights, gradients and AdamW's two moments. Of the forward pass it counts, tensor by tensor,
what torch keeps for the backward pass (`_attention_bytes`, `_feed_forward_bytes`); of everything that comes and
goes, only the loss, which is large. What python, the libraries and the allocator hold besides is not in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dragoman.model.shape import ModelConfig


class Shape(NamedTuple):
    """A batch: `rows` padded to `src` and `tgt` positions; `tokens` to predict, padding not counted.

    Of pairs packed into one row without padding: how many there are, and their mean lengths.
    """

    rows: float
    src: float
    tgt: float
    tokens: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of a model of this shape. Letters as in model/__init__.py."""

    config: ModelConfig
    src_vocab_size: int
    tgt_vocab_size: int

    def parameters(self) -> dict[str, int]:
        """How many numbers each part learns; a tied projection learns none of its own."""
        c, d = self.config, self.config.d_model
        attention = 4 * (d * d + d) + (d if c.score == "additive" else 0)
        feed_forward = self._n_up * (d + 1) * c.d_ff + (c.d_ff + 1) * d
        norm = d if c.normalization == "rms_norm" else 2 * d
        n_norms = 2 * c.n_encoder_layers + 3 * c.n_decoder_layers + (2 if c.norm == "pre" else 0)
        n_words = self.tgt_vocab_size + (0 if c.tie == "all" else self.src_vocab_size)
        positions = {
            "learned": 2 * c.position.length * d,
            "t5": 2 * c.position.n_buckets * c.n_heads,
            "transformer_xl": 4 * d + (c.n_encoder_layers + c.n_decoder_layers) * d * d,
        }
        return {
            "embeddings": n_words * d,
            "encoder self-attention": c.n_encoder_layers * attention,
            "encoder feed-forward": c.n_encoder_layers * feed_forward,
            "decoder self-attention": c.n_decoder_layers * attention,
            "decoder cross-attention": c.n_decoder_layers * attention,
            "decoder feed-forward": c.n_decoder_layers * feed_forward,
            "norms": n_norms * norm,
            "positions": positions.get(c.position.kind, 0),
            "projection": self.tgt_vocab_size * d if c.tie == "none" else 0,
        }

    def flops(self, shape: Shape, *, training: bool = False) -> dict[str, float]:
        """Operations by part: of the forward pass, or of it and the backward pass."""
        c, d = self.config, self.config.d_model
        rows, src, tgt = shape.rows, shape.src, shape.tgt

        def attention(
            n_queries: float, n_keys: float
        ) -> float:  # q and out, k and v; scores, and their sums of v
            return 4 * rows * (n_queries + n_keys) * d * d + 4 * rows * n_queries * n_keys * d

        feed_forward = 2 * (self._n_up + 1) * d * c.d_ff * rows
        found = {
            "encoder self-attention": c.n_encoder_layers * attention(src, src),
            "encoder feed-forward": c.n_encoder_layers * feed_forward * src,
            "decoder self-attention": c.n_decoder_layers * attention(tgt, tgt),
            "decoder cross-attention": c.n_decoder_layers * attention(tgt, src),
            "decoder feed-forward": c.n_decoder_layers * feed_forward * tgt,
            "projection": 2 * shape.tokens * d * self.tgt_vocab_size,
        }
        if training:
            found = {part: 3 * n for part, n in found.items()}
        if c.position.kind == "transformer_xl":
            found["positions"] = c.n_encoder_layers * self._transformer_xl(rows, src, 2 * src - 1, training)
            found["positions"] += c.n_decoder_layers * self._transformer_xl(rows, tgt, tgt, training)
        return found

    def _transformer_xl(self, rows: float, length: float, n_distances: float, training: bool) -> float:
        """W_kR R for each distance; then u.k for each key, and (q + v).W_kR R for each query and distance."""
        d = self.config.d_model
        projected, met = 2 * n_distances * d * d, 2 * rows * length * (1 + n_distances) * d
        return 2 * projected + 3 * met if training else projected + met

    def sums_and_tanh(self, shape: Shape) -> float:
        """Operations of additive scores, forward, that `flops` leaves out; 0 for products, which it counts whole."""
        c, (rows, src, tgt, _) = self.config, shape
        pairs = c.n_encoder_layers * src * src + c.n_decoder_layers * (tgt * tgt + tgt * src)
        return 2 * rows * pairs * c.d_model if c.score == "additive" else 0

    def memory(self, shape: Shape, *, average: bool, width: int, chunk: int) -> dict[str, float]:
        """Bytes at the end of the forward pass, which is about where a training step needs most.

        The gradients are those gathered from earlier batches of the step. Of a step of one batch they come as the
        activations go, so that it needs less, by as much as they are at most.
        `average`: whether a moving average of the weights is kept; `width`: bytes of a number in matrix products (4,
        or 2 under autocast); `chunk`: how many positions the loss takes at a time.
        """
        weights, d, n_words = 4 * sum(self.parameters().values()), self.config.d_model, self.tgt_vocab_size
        return {
            "weights": weights,
            "gradients": weights,
            "AdamW": 2 * weights,
            "average": weights if average else 0,
            "activations": self.activations(shape, width=width),
            # two matrices of (chunk, V), a product and a sum of (V, D), the states to score and their gradient
            "loss": 8 * (min(chunk, shape.tokens) * n_words + n_words * d + shape.tokens * d),
        }

    def activations(self, shape: Shape, *, width: int = 4) -> float:
        """Bytes that encoder and decoder keep for the backward pass: counted on a CPU, elsewhere much the same."""
        c = self.config
        src, tgt = shape.rows * shape.src, shape.rows * shape.tgt
        encoder = self._attention_bytes(shape.rows, shape.src, shape.src, width, "encoder")
        encoder += src * self._feed_forward_bytes(width)
        decoder = self._attention_bytes(shape.rows, shape.tgt, shape.tgt, width, "decoder")
        decoder += self._attention_bytes(shape.rows, shape.tgt, shape.src, width, "cross")
        decoder += tgt * self._feed_forward_bytes(width)
        last_norms = self._norm_bytes if c.norm == "pre" else 0
        ends = (src + tgt) * (self._mask_bytes + last_norms) + src * width * c.d_model  # and the memory, once
        return ends + c.n_encoder_layers * encoder + c.n_decoder_layers * decoder

    @property
    def _n_up(self) -> int:
        """Products from d_model to d_ff: swiglu has a gate."""
        return 2 if self.config.activation == "swiglu" else 1

    @property
    def _mask_bytes(self) -> int:
        """One position: a byte for each number that dropout let through or not."""
        return self.config.d_model if self.config.dropout else 0

    @property
    def _norm_bytes(self) -> int:
        """One position, always in fp32: what came in and what it was divided by; for rms_norm also the quotient."""
        return 4 * (self.config.d_model * (2 if self.config.normalization == "rms_norm" else 1) + 2)

    def _residual_bytes(self, width: int) -> int:
        """One position around a sub-layer: what its norm keeps, what its products take, its dropout's mask."""
        return self._norm_bytes + width * self.config.d_model + self._mask_bytes

    def _feed_forward_bytes(self, width: int) -> int:
        """One position. relu keeps its result, which the last product takes; gelu its input besides; swiglu its gate
        before and after silu, the other factor and the product. Dropout adds a result of its own and a mask."""
        c = self.config
        numbers = {"relu": 2 if c.activation_dropout else 1, "gelu": 2, "swiglu": 4}[c.activation]
        return self._residual_bytes(width) + c.d_ff * (width * numbers + (1 if c.activation_dropout else 0))

    def _attention_bytes(self, rows: float, n_queries: float, n_keys: float, width: int, kind: str) -> float:
        """All rows: q, k, v and the result; and where torch cannot do without, numbers for each pair of tokens."""
        c, position = self.config, None if kind == "cross" else self.config.position.kind
        d, queries, keys, pairs = c.d_model, rows * n_queries, rows * n_keys, rows * n_queries * n_keys
        numbers = (2 * queries + 2 * keys) * d
        if c.score == "additive":  # not q and k but tanh(q + k), and w once for each query
            numbers += (pairs - keys) * d
        elif position == "rope":  # k turned, while v holds on to it as it was; the result in two orders
            numbers += (queries + keys) * d
        if position == "transformer_xl":  # q + v, k, W_kR R for each row; their products at all distances
            n_distances = n_keys if kind == "decoder" else 2 * n_keys - 1
            numbers += (queries + keys + rows * n_distances) * d + queries * n_distances * c.n_heads
        # A bias that learns needs the weights kept; alibi's does not, but where padding differs each row has its own.
        formed = c.score == "additive" or position in ("t5", "transformer_xl")
        if c.attention_dropout:  # the weights, what each was multiplied by, and the products
            numbers += 3 * pairs * c.n_heads
        elif formed or (position == "alibi" and kind == "encoder"):
            numbers += pairs * c.n_heads
        return width * numbers + queries * (self._residual_bytes(width) + 4 * c.n_heads)


def table(cost: Cost, shapes: Sequence[Shape], *, average: bool, width: int, chunk: int) -> str:
    """For people, a dozen lines. `shapes` are an epoch's batches, the longest first; the rest as in `Cost.memory`."""
    parameters = cost.parameters()
    flops = dict.fromkeys(parameters, 0.0)
    for shape in shapes:
        for part, n in cost.flops(shape, training=True).items():
            flops[part] += n
    n_parameters, n_flops = sum(parameters.values()), sum(flops.values())
    millions = 1e6 * sum(shape.tokens for shape in shapes)  # for each target token
    lines = [f"{'part':<23}{'parameters':>13}{'share':>7}{'MFLOPs':>11}{'share':>7}"]
    for part in parameters:
        if parameters[part] or flops[part]:
            line = f"{part:<23}{parameters[part]:>13,}{parameters[part] / n_parameters:>7.1%}"
            if not parameters[part]:
                line = f"{part:<23}{'tied':>13}{'':>7}"
            if flops[part]:
                line += f"{flops[part] / millions:>11.2f}{flops[part] / n_flops:>7.1%}"
            lines.append(line)
    per_token = "for each target token, forward and backward"
    lines.append(f"{'all':<23}{n_parameters:>13,}{'':>7}{n_flops / millions:>11.2f}  {per_token}")
    if n_sums := sum(map(cost.sums_and_tanh, shapes)):
        lines.append(f"{'not in it: additive sums and tanh':<50}{n_sums / millions:>11.2f}  forward")
    memory = cost.memory(shapes[0], average=average, width=width, chunk=chunk)
    told = ", ".join(f"{what} {size / 1e6:,.0f}" for what, size in memory.items() if size)
    rows, src, tgt = (round(n, 1) for n in shapes[0][:3])
    lines.append(
        f"memory {sum(memory.values()) / 1e6:,.0f} MB: {told} (longest batch: {rows:g} x {src:g} to {tgt:g})"
    )
    return "\n".join(lines)

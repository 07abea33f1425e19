"""What shapes a network: its configuration, and nothing that computes.

It knows the names of all choices and which contradict each other, and refuses to know torch, so that a model's
config.json is read and checked at once where no torch is needed. The classes that the names stand for are in
position.py (POSITIONS), attention.py (SCORES) and layers.py (ACTIVATIONS, NORMALIZATIONS).
"""

import math
from dataclasses import dataclass, field

from dragoman.errors import UserError, suggest

POSITION_KINDS = (
    "none", "integer", "unit", "sinusoidal", "learned", "rope", "t5", "transformer_xl", "alibi",
)  # fmt: skip
CHOICES = {
    "score": ("scaled_dot", "dot", "additive"),
    "activation": ("relu", "gelu", "swiglu"),
    "norm": ("pre", "post"),
    "tie": ("none", "tgt", "all"),
    "normalization": ("layer_norm", "rms_norm"),
}


@dataclass(kw_only=True)
class PositionConfig:
    """`kind` names the scheme; the other keys belong to some of them.

    base: sinusoidal, rope, transformer_xl: the 10000 of the sinusoid, which sets the longest wavelength.
    length: learned, unit: how many positions there are. n_buckets, max_distance: t5.
    """

    kind: str = "sinusoidal"
    base: float = 10000.0
    length: int = 512
    n_buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        if self.kind not in POSITION_KINDS:
            choices = ", ".join(POSITION_KINDS)
            raise UserError(
                f"model.position.kind={self.kind}: choose one of {choices}{suggest(self.kind, POSITION_KINDS)}"
            )
        if not 1 < self.base < math.inf:
            raise UserError(f"model.position.base={self.base}: must be greater than 1 (the paper's is 10000)")
        if self.length < 2:
            raise UserError(f"model.position.length={self.length}: must be at least 2")
        if self.n_buckets < 4 or self.n_buckets % 4:
            raise UserError(f"model.position.n_buckets={self.n_buckets}: must be a multiple of 4, T5 has 32")
        if self.max_distance <= self.n_buckets // 2:
            raise UserError(
                f"model.position.max_distance={self.max_distance}: must be greater than n_buckets / 2 = "
                f"{self.n_buckets // 2}, the distances that have a bucket each"
            )

    @property
    def limit(self) -> int | None:
        """How many positions there are; None: as many as are asked for."""
        return self.length if self.kind in ("learned", "unit") else None


@dataclass(kw_only=True)
class EmbeddingConfig:
    """How the embeddings of a new run begin: at random, or with the word vectors of the text file `init`."""

    init: str | None = None


@dataclass(kw_only=True)
class ModelConfig:
    """Everything that shapes the network except the vocabularies.

    tie: "none" three matrices; "tgt" the output reads the target embedding; "all" one matrix for source, target and
    output (needs one joint vocabulary). dropout is on embeddings and sub-layer outputs, activation_dropout inside
    the feed-forward, attention_dropout on the attention weights.
    """

    d_model: int = 256
    d_ff: int = 1024
    n_heads: int = 4
    n_encoder_layers: int = 3
    n_decoder_layers: int = 3
    dropout: float = 0.1
    activation_dropout: float = 0.0
    attention_dropout: float = 0.0
    activation: str = "relu"
    norm: str = "pre"
    normalization: str = "layer_norm"
    tie: str = "all"
    score: str = "scaled_dot"
    position: PositionConfig = field(default_factory=PositionConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)

    def __post_init__(self) -> None:
        for key in ("d_model", "d_ff", "n_heads", "n_encoder_layers", "n_decoder_layers"):
            if getattr(self, key) < 1:
                raise UserError(f"model.{key}={getattr(self, key)}: must be at least 1")
        if self.d_model % self.n_heads:
            fitting = [h for h in (1, 2, 4, 8, 16) if self.d_model % h == 0]
            raise UserError(
                f"model.n_heads={self.n_heads} does not divide model.d_model={self.d_model}; "
                f"n_heads could be one of {', '.join(map(str, fitting))}"
            )
        d_head = self.d_model // self.n_heads
        if self.position.kind == "rope" and d_head % 2:
            raise UserError(
                f"model.position.kind=rope turns pairs of components, but model.d_model={self.d_model} over "
                f"model.n_heads={self.n_heads} makes heads of {d_head}: change n_heads so that their size is even"
            )
        for key in ("dropout", "activation_dropout", "attention_dropout"):
            if not 0 <= getattr(self, key) < 1:
                raise UserError(f"model.{key}={getattr(self, key)}: must be at least 0 and below 1")
        for key, choices in CHOICES.items():
            value = getattr(self, key)
            if value not in choices:
                raise UserError(
                    f"model.{key}={value}: choose one of {', '.join(choices)}{suggest(value, choices)}"
                )

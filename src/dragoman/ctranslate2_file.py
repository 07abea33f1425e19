"""What the files of an export must hold: exactly what the bundle that it was made of implies.

CTranslate2 takes a file's word for it. A model.bin that states no heads, a layer that is not there or a norm of one
number stops the process or reads past its end, so every variable is compared with the one that config.json makes
before the library sees the file. This file knows the format of model.bin and the names of a TransformerSpec, and
refuses to know torch, CTranslate2, and where an export lies (ctranslate2_engine.py).
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dragoman import untrusted
from dragoman.errors import UserError
from dragoman.model.shape import ModelConfig
from dragoman.special import BOS, EOS, UNK

QUANTIZATIONS = ("int8", "int16", "float32")
LAYER_NORM_EPSILON = 1e-5
_VERSION, _SPEC = 6, "TransformerSpec"
_FLOAT32, _INT8, _INT16, _INT32 = range(4)  # as model.bin numbers them
_SIZES, _FORMS = (4, 1, 2, 4), ("<f", "<b", "<h", "<i")
_ACTIVATIONS = {"relu": 0, "swiglu": 2, "gelu": 3}


@dataclass(frozen=True)
class Variable:
    """Shape and type; of a whole number that stands alone, also which."""

    shape: tuple[int, ...]
    kind: int
    value: int | None = None


class _Layout(dict[str, Variable]):
    """Of a network: name -> variable."""

    def __init__(self, config: ModelConfig, quantization: str) -> None:
        super().__init__()
        self._config, self._d = config, config.d_model
        self._weights = {"float32": _FLOAT32, "int8": _INT8, "int16": _INT16}[quantization]

    def numbers(self, prefix: str, kind: int = _INT8, **values: int) -> None:
        self.update({f"{prefix}/{name}": Variable((), kind, value) for name, value in values.items()})

    def floats(self, name: str, *shape: int) -> None:
        self[name] = Variable(shape, _FLOAT32)

    def matrix(self, name: str, n_rows: int, n_columns: int, *, bias: bool = True) -> None:
        """int8 has a scale for each row, int16 one for all."""
        self[f"{name}/weight"] = Variable((n_rows, n_columns), self._weights)
        if self._weights != _FLOAT32:
            self.floats(f"{name}/weight_scale", *[n_rows][: self._weights == _INT8])
        if bias:
            self.floats(f"{name}/bias", n_rows)

    def norm(self, name: str) -> None:
        self.floats(f"{name}/gamma", self._d)
        if self._config.normalization == "layer_norm":
            self.floats(f"{name}/beta", self._d)

    def attention(self, name: str, *products: int) -> None:
        """`products`: the rows of each, in words as wide as the model."""
        self.floats(f"{name}/queries_scale")
        self.norm(f"{name}/layer_norm")
        for n, rows in enumerate(products):
            self.matrix(f"{name}/linear_{n}", rows * self._d, self._d)

    def self_attention(self, name: str) -> None:
        self.attention(name, 3, 1)
        position, n_heads = self._config.position, self._config.n_heads
        if position.kind == "rope":
            self.floats(f"{name}/rotary_base")
            self.numbers(name, rotary_interleave=1)
            self.numbers(name, _INT32, rotary_dim=self._d // n_heads)
        if position.kind == "t5":
            self.floats(f"{name}/relative_attention_bias", position.n_buckets, n_heads)
            self.numbers(name, _INT32, relative_attention_max_distance=position.max_distance)

    def feed_forward(self, name: str) -> None:
        self.norm(f"{name}/layer_norm")
        for up in ("linear_0", "linear_0_noact")[: 1 + (self._config.activation == "swiglu")]:
            self.matrix(f"{name}/{up}", self._config.d_ff, self._d)
        self.matrix(f"{name}/linear_1", self._d, self._config.d_ff)

    def side(self, name: str, n_positions: int) -> None:
        """What encoder and decoder have both."""
        pre, activation = self._config.norm == "pre", _ACTIVATIONS[self._config.activation]
        self.numbers(name, pre_norm=int(pre), activation=activation, scale_embeddings=1)
        self.numbers(name, _INT16, num_heads=self._config.n_heads)
        if n_positions:
            self.floats(f"{name}/position_encodings/encodings", n_positions, self._d)
        if pre:
            self.norm(f"{name}/layer_norm")


def layout(
    config: ModelConfig, sizes: tuple[int, int], n_positions: int, quantization: str
) -> dict[str, Variable]:
    """The variables of a network with vocabularies of these sizes (source, target)."""
    found = _Layout(config, quantization)
    found.side("encoder", n_positions)
    found.numbers("encoder", multi_query_attention=0, embeddings_merge=0)
    found.matrix("encoder/embeddings_0", sizes[0], config.d_model, bias=False)
    for n in range(config.n_encoder_layers):
        found.self_attention(f"encoder/layer_{n}/self_attention")
        found.feed_forward(f"encoder/layer_{n}/ffn")
    found.side("decoder", n_positions)
    found.numbers(
        "decoder", alibi=0, alibi_use_positive_positions=0, scale_alibi=0, start_from_zero_embedding=0
    )
    found.numbers("decoder", _INT16, alignment_layer=-1, alignment_heads=1)
    found.matrix("decoder/embeddings", sizes[1], config.d_model, bias=False)
    found.matrix("decoder/projection", sizes[1], config.d_model)
    for n in range(config.n_decoder_layers):
        found.self_attention(f"decoder/layer_{n}/self_attention")
        found.attention(f"decoder/layer_{n}/attention", 1, 2, 1)
        found.feed_forward(f"decoder/layer_{n}/ffn")
    return found


def check_model(path: Path, expected: dict[str, Variable]) -> None:
    """Whether a model.bin holds these variables and nothing else. Raises UserError."""
    try:
        with path.open("rb") as file:
            found = _variables(file, expected)
            whole = file.tell() == path.stat().st_size
    except (struct.error, IndexError, UnicodeDecodeError, _ForeignError) as error:
        told = str(error) if isinstance(error, _ForeignError) else "truncated or foreign"
        raise UserError(f"{path} is not the model of its bundle: {told}") from error
    for name, variable in expected.items():
        if found.get(name) != variable:
            has = f"is {_told(found[name])}" if name in found else "is missing"
            raise UserError(
                f"{path} is not the model of its bundle: {name} {has}, config.json makes it {_told(variable)}"
            )
    if not whole:
        raise UserError(f"{path} is not the model of its bundle: it is longer than what it holds")


class _ForeignError(ValueError):
    """A file holds what no export does; its words say what."""


def _variables(file: BinaryIO, expected: dict[str, Variable]) -> dict[str, Variable]:
    """What a model.bin says it holds: name -> variable, aliases resolved."""

    def number(form: str) -> int:
        return int(struct.unpack(form, file.read(struct.calcsize(form)))[0])

    def name() -> str:
        return file.read(number("<H")).decode().removesuffix("\0")

    def new_name() -> str:
        """A model has few; a file has room for millions."""
        this = name()
        if this not in expected or this in found:
            raise _ForeignError(f"{this[:100]!r} is not expected there")
        return this

    found: dict[str, Variable] = {}
    if number("<I") != _VERSION or name() != _SPEC:
        raise _ForeignError("another format")
    number("<I")  # of the spec; the library refuses newer ones
    for _ in range(number("<I")):
        this = new_name()
        shape = tuple(number("<I") for _ in range(number("<B")))
        kind, size = number("<B"), number("<I")
        if size != math.prod(shape) * _SIZES[kind]:
            raise _ForeignError(f"{this} is not as large as its shape")
        if shape or kind == _FLOAT32:
            file.seek(size, os.SEEK_CUR)
            found[this] = Variable(shape, kind)
        else:
            found[this] = Variable(shape, kind, number(_FORMS[kind]))
    for _ in range(number("<I")):
        this, other = new_name(), name()
        for end in ("", "_scale"):  # of a quantized weight, which the library takes along
            if not end or other + end in found:
                found[this + end] = found.get(other + end, Variable((0,), _FLOAT32))
    return found


def _told(variable: Variable) -> str:
    kind = ("float32", "int8", "int16", "int32")[variable.kind]
    return f"{kind} {list(variable.shape) if variable.value is None else variable.value}"


def check_words(path: Path, pieces: Sequence[str]) -> None:
    """Whether a vocabulary file lists these pieces: a longer one would have ids that no row stands for."""
    honest = path.stat().st_size <= 4 * len(json.dumps(pieces)) + 100
    try:
        same = honest and json.loads(path.read_bytes()) == list(pieces)
    except (ValueError, RecursionError):
        same = False
    if not same:
        raise UserError(f"{path} does not list the pieces of the bundle's tokenizer")


def settings(tgt_pieces: Sequence[str]) -> dict[str, Any]:
    """The config.json of an export."""
    return {
        "add_source_bos": False,
        "add_source_eos": True,
        "bos_token": tgt_pieces[BOS],
        "decoder_start_token": tgt_pieces[BOS],
        "eos_token": tgt_pieces[EOS],
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
        "multi_query_attention": False,
        "unk_token": tgt_pieces[UNK],
    }


def check_settings(folder: Path, name: str, tgt_pieces: Sequence[str]) -> None:
    """Whether the file says what an export of this target vocabulary does."""
    found, expected = untrusted.read_json(folder, name), settings(tgt_pieces)
    different = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
    if different:
        raise UserError(f"{folder / name} has other settings than an export: {', '.join(different)[:200]}")

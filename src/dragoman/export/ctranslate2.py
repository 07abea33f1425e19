"""A bundle's network in the words of CTranslate2, written beside it and used by ctranslate2_engine.py.

It knows where each of our parameters stands in CTranslate2's TransformerSpec, and refuses to know how translations
are searched. What the spec has no words for is refused by name before any work; the table in model/transformer.py
lists it.

Position schemes that add something to the word vectors become a table of what they add, as long as any search of
this bundle's own settings needs. The pieces that must never be written (search/warp.py) get a bias that no logit
outweighs: so CTranslate2 need not be told at each call, and the other pieces share all of the probability.

Nothing is written before the same network in float32 has translated a hundred sentences to the same ids as torch.
"""

import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman import bundle as bundles
from dragoman import ctranslate2_engine, durable, untrusted
from dragoman.bundle import Bundle
from dragoman.ctranslate2_engine import FORMAT_VERSION, TABLELESS, CTranslate2Engine, Manifest, inexpressible
from dragoman.ctranslate2_file import LAYER_NORM_EPSILON, QUANTIZATIONS
from dragoman.data.corpus import clean_text
from dragoman.description import MANIFEST
from dragoman.errors import UserError, suggest
from dragoman.model.attention import Attention, Dot
from dragoman.model.layers import FeedForward
from dragoman.model.position import T5, Position, Rope
from dragoman.model.transformer import Transformer
from dragoman.search.hypothesis import SearchConfig
from dragoman.search.warp import NEVER
from dragoman.special import BOS, EOS, UNK
from dragoman.torch_engine import translate_ids

SENTENCES = 100  # translated by both engines
_FEWEST_POSITIONS = 1024
_NEVER_BIAS = -1e9
_LONGEST_DRAWN = 24  # pieces


def export(folder: Path, sentences: Sequence[str] = (), *, quantization: str = "int8") -> Path:
    """Write the export of the bundle at `folder`; returns where. The first 100 of `sentences` prove it.

    Where there are fewer, rows of pieces drawn by chance make up the number.
    Raises UserError for what CTranslate2 cannot express, for an export that does not write what torch does, and for
    a folder that cannot be written; an older export is then left as it was.
    """
    library = ctranslate2_engine.library()
    if quantization not in QUANTIZATIONS:
        raise UserError(
            f"--quantization {quantization}: choose one of {', '.join(QUANTIZATIONS)}"
            f"{suggest(quantization, QUANTIZATIONS)}"
        )
    beyond = inexpressible(bundles.describe(folder).model)
    if beyond:
        raise UserError(f"CTranslate2 cannot express {beyond}: {folder} is for torch alone")
    made_of = ctranslate2_engine.made_of(folder)
    bundle = bundles.load(folder)
    n_positions = _n_positions(bundle)
    with tempfile.TemporaryDirectory() as exact:
        _write(bundle, Path(exact), n_positions, "float32")
        _compare(bundle, CTranslate2Engine(Path(exact), bundle, n_positions), sentences)

    def fill(new: Path) -> None:
        _write(bundle, new, n_positions, quantization)
        ctranslate2_engine.check(new, bundle, n_positions, quantization)  # or nobody could load it
        CTranslate2Engine(new, bundle, n_positions)  # refuses what this machine cannot read
        files = {
            path.name: {"size": path.stat().st_size, "sha256": untrusted.sha256(path)}
            for path in sorted(new.iterdir())
        }
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            library=library.__version__,
            quantization=quantization,
            positions=n_positions,
            made_of=made_of,
            files=files,
        )
        (new / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")

    durable.replace_folder(folder / ctranslate2_engine.FOLDER, fill)
    return folder / ctranslate2_engine.FOLDER


def told(made: Path) -> str:
    """What was made, in words."""
    manifest = untrusted.read_json(made, MANIFEST)
    megabytes = sum(entry["size"] for entry in manifest["files"].values()) / 1e6
    return (
        f"{made}: {manifest['quantization']}, {megabytes:.1f} MB; {SENTENCES} sentences as torch in float32"
    )


def _n_positions(bundle: Bundle) -> int:
    """How long the table of positions is; 0: the scheme has none."""
    position = bundle.model_config.position
    if position.kind in TABLELESS:
        return 0
    if position.limit is not None:
        return position.limit
    longest = bundle.max_length + len(bundle.directions)  # its tag, its end mark
    return max(_FEWEST_POSITIONS, longest, bundle.search.max_length(longest))


def _write(bundle: Bundle, folder: Path, n_positions: int, quantization: str) -> None:
    spec = specification(bundle.model, n_positions)
    pieces = [
        tokenizer.pieces(range(len(tokenizer))) for tokenizer in (bundle.src_tokenizer, bundle.tgt_tokenizer)
    ]
    spec.register_source_vocabulary(pieces[0])
    spec.register_target_vocabulary(pieces[1])
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (
        pieces[1][i] for i in (UNK, BOS, EOS)
    )
    spec.config.decoder_start_token = pieces[1][BOS]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))


def _compare(bundle: Bundle, engine: CTranslate2Engine, sentences: Sequence[str]) -> None:
    """Raises UserError unless both engines write the same ids, in each direction."""
    tags = cycle([bundle.src_tokenizer.tag(direction.tgt) for direction in bundle.directions])
    rows = bundle.src_tokenizer.encode_batch([clean_text(text) for text in sentences[: 2 * SENTENCES]])
    chance = random.Random(1)
    pieces = range(EOS + 1, len(bundle.src_tokenizer))
    rows += [chance.choices(pieces, k=chance.randint(1, _LONGEST_DRAWN)) for _ in range(SENTENCES)]
    longest = bundle.max_length
    if bundle.model.max_positions is not None:
        longest = min(longest, bundle.model.max_positions - len(bundle.directions))
    sources = [[*tag, *row[:longest]] for tag, row in zip(tags, filter(None, rows), strict=False)][:SENTENCES]
    greedy = SearchConfig(kind="greedy")
    ours = translate_ids(bundle.model, sources, greedy)
    theirs = engine.translate(sources, greedy, scored=False)
    different = [n for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a[0].ids != b[0].ids]
    if different:
        raise UserError(
            f"CTranslate2 translates {len(different)} of {SENTENCES} sentences differently from torch, the first "
            f"after {sources[different[0]]}: nothing was written"
        )


def specification(model: Transformer, n_positions: int) -> Any:
    """The network as a ctranslate2.specs.TransformerSpec in float32, without vocabularies."""
    from ctranslate2 import specs

    config = model.config
    activation = {
        "relu": specs.Activation.RELU,
        "gelu": specs.Activation.GELU,
        "swiglu": specs.Activation.SWISH,
    }
    shape: dict[str, Any] = {
        "pre_norm": config.norm == "pre",
        "activation": activation[config.activation],
        "ffn_glu": config.activation == "swiglu",
        "rms_norm": config.normalization == "rms_norm",
        "relative_attention_bias": config.position.kind == "t5",
    }
    if config.position.kind == "rope":
        shape |= {
            "rotary_dim": config.d_model // config.n_heads,
            "rotary_interleave": True,
            "rotary_base": config.position.base,
        }
    encoder = specs.TransformerEncoderSpec(config.n_encoder_layers, config.n_heads, **shape)
    decoder = specs.TransformerDecoderSpec(config.n_decoder_layers, config.n_heads, **shape)
    encoder.embeddings[0].weight = _numbers(model.src_embedding.table.weight)
    decoder.embeddings.weight = _numbers(model.tgt_embedding.table.weight)
    for spec, position in ((encoder, model.encoder_position), (decoder, model.decoder_position)):
        if n_positions:
            spec.position_encodings.encodings = _table(position, n_positions, config.d_model)
        if config.norm == "pre":
            _norm(spec.layer_norm, model.encoder_norm if spec is encoder else model.decoder_norm)
    encoder_layers: list[Any] = list(model.encoder)
    for spec, layer in zip(encoder.layer, encoder_layers, strict=True):
        _attention(spec.self_attention, layer.self_attention, layer.residuals[0].norm)
        _feed_forward(spec.ffn, layer.feed_forward, layer.residuals[1].norm)
    decoder_layers: list[Any] = list(model.decoder)
    for spec, layer in zip(decoder.layer, decoder_layers, strict=True):
        _attention(spec.self_attention, layer.self_attention, layer.residuals[0].norm)
        _attention(spec.attention, layer.cross_attention, layer.residuals[1].norm)
        _feed_forward(spec.ffn, layer.feed_forward, layer.residuals[2].norm)
    decoder.projection.weight = _numbers(model.projection.weight)
    decoder.projection.bias = np.zeros(len(model.projection.weight), dtype=np.float32)
    decoder.projection.bias[list(NEVER)] = _NEVER_BIAS
    return specs.TransformerSpec(encoder, decoder)


def _attention(spec: Any, attention: Attention, norm: torch.nn.Module) -> None:
    """Self-attention has one product for queries, keys and values; cross-attention has one for keys and values."""
    assert isinstance(attention.score, Dot)
    products = [attention.q, attention.kv, attention.out]
    if attention.position is not None:
        spec.linear[0].weight = _numbers(torch.cat([attention.q.weight, attention.kv.weight]))
        spec.linear[0].bias = _numbers(torch.cat([attention.q.bias, attention.kv.bias]))
        products = [attention.out]
    for linear, product in zip(spec.linear[-len(products) :], products, strict=True):
        _linear(linear, product)
    spec.queries_scale = np.float32(attention.score.scale)
    if isinstance(attention.position, T5):
        spec.relative_attention_bias = _numbers(attention.position.table)
        spec.relative_attention_max_distance = np.int32(attention.position.max_distance)
    _norm(spec.layer_norm, norm)


def _feed_forward(spec: Any, feed_forward: FeedForward, norm: torch.nn.Module) -> None:
    if feed_forward.gate is None:
        _linear(spec.linear_0, feed_forward.up)
    else:
        _linear(spec.linear_0, feed_forward.gate)
        _linear(spec.linear_0_noact, feed_forward.up)
    _linear(spec.linear_1, feed_forward.down)
    _norm(spec.layer_norm, norm)


def _linear(spec: Any, product: torch.nn.Linear) -> None:
    spec.weight, spec.bias = _numbers(product.weight), _numbers(product.bias)


def _norm(spec: Any, norm: torch.nn.Module) -> None:
    assert isinstance(norm.weight, Tensor)
    spec.gamma = _numbers(norm.weight)
    if isinstance(norm, torch.nn.LayerNorm):
        spec.beta = _numbers(norm.bias)


@torch.inference_mode()
def _table(position: Position, length: int, d_model: int) -> np.ndarray:
    """What a scheme adds at each place (length, D)."""
    assert not isinstance(position, T5 | Rope)
    return _numbers(position.embed(torch.zeros(1, length, d_model), torch.arange(length))[0])


def _numbers(tensor: Tensor) -> np.ndarray:
    """A copy: quantizing changes numbers where they lie."""
    return tensor.detach().to("cpu", torch.float32, copy=True).numpy()

"""Export of a bundle to CTranslate2, into its folder ctranslate2/.

Absolute positions are exported as a table of position encodings, long enough for the bundle's search settings. The
decoder has only the pieces that a translation can have; special ones (search/search.py, NEVER) get a very low bias.

Verification: before the export is saved, CTranslate2 and torch translate 100 sentences by greedy search in float32.
Two translations may differ only after a near tie: at the first piece that differs, torch's log-probs of the two pieces
differ by at most NEAR_TIE.
"""

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dragoman import files
from dragoman.bundle import MANIFEST, Bundle, entries, load
from dragoman.config import ModelConfig, SearchConfig
from dragoman.data.text import clean_text
from dragoman.errors import UserError
from dragoman.model.attention import SCORES, Attention
from dragoman.model.position import POSITIONS, T5, Rope
from dragoman.model.transformer import IMPOSSIBLE, Transformer
from dragoman.search.search import NEVER
from dragoman.special import BOS, EOS, UNK
from dragoman.translation.ctranslate2 import FORMAT_VERSION, CTranslate2Engine, export_of, made_of
from dragoman.translation.engine import log_probs, translate_ids

SENTENCES = 100  # translated by both engines
NEAR_TIE = 1e-4  # nats: at this difference or less, the engines may choose different pieces
_LONGEST = 100  # ids of a verified sentence, without tag and <EOS>
_FEWEST_POSITIONS = 1024  # minimum length of an exported position table
# CTranslate2's names. SwiGLU is a gated feed-forward with SWISH.
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "swiglu": "SWISH"}


def unsupported_by_ctranslate2(config: ModelConfig) -> str | None:
    """Return the first setting that CTranslate2 does not support, or None."""
    supported = {
        f"model.score={config.score}": SCORES[config.score].ctranslate2,
        f"model.position.kind={config.position.kind}": POSITIONS[config.position.kind].ctranslate2,
        f"model.activation={config.activation}": config.activation in _ACTIVATIONS,
        f"model.normalization={config.normalization}": config.normalization in ("layer_norm", "rms_norm"),
    }
    return next((setting for setting in supported if not supported[setting]), None)


def export_bundle(folder: Path, sources: Sequence[str] = (), *, quantization: str = "int8") -> str:
    """Write the export, verify it on the first `sources`, and return a summary.

    Random ids are used if there are fewer than 100 sources. `quantization`: int8, int16 or float32. Raises UserError if
    CTranslate2 does not support the model, or translates unlike torch. In both cases an older export stays unchanged.
    """
    # Before the weights are loaded: if they are replaced in between, the export is then recognised as stale.
    origin = made_of(folder)
    bundle = load(folder)
    if setting := unsupported_by_ctranslate2(bundle.model_config):
        raise UserError(f"{folder}: CTranslate2 does not support {setting}. Translate with torch")
    positions = n_positions(bundle)

    def fill(new: Path) -> None:
        _write(bundle, new, positions, "float32")
        _verify(bundle, CTranslate2Engine(new, bundle, positions), sources)
        _write(bundle, new, positions, quantization)
        manifest = {"format_version": FORMAT_VERSION, "quantization": quantization, "positions": positions}
        manifest |= {"made_of": origin, "files": entries(new)}
        (new / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")

    target = export_of(folder)
    files.replace_folder(target, fill)
    megabytes = sum(path.stat().st_size for path in target.iterdir()) / 1e6
    return f"{target}: {quantization}, {megabytes:.1f} MB; {SENTENCES} sentences verified against torch"


def n_positions(bundle: Bundle) -> int:
    """Return the length of the position table; 0 if the scheme needs no table."""
    if isinstance(bundle.model.encoder_position, T5 | Rope):
        return 0
    longest = bundle.max_length + len(bundle.directions)  # with <EOS>, and the language tag if there are two directions
    return bundle.model.max_positions or max(_FEWEST_POSITIONS, longest, bundle.search.max_length(longest))


def _verify(bundle: Bundle, fast: CTranslate2Engine, texts: Sequence[str]) -> None:
    """Compare `fast` with torch. Raises UserError if they differ without a near tie."""
    sources, greedy = verified_sources(bundle, texts), SearchConfig(kind="greedy")
    by_torch, by_ctranslate2 = translate_ids(bundle.model, sources, greedy), fast.translate(sources, greedy)
    # Greedy search gives one hypothesis per sentence.
    for source, (ours,), (theirs,) in zip(sources, by_torch, by_ctranslate2, strict=True):
        if ours.ids != theirs.ids and gap(bundle.model, source, ours.ids, theirs.ids) > NEAR_TIE:
            raise UserError(f"CTranslate2: the export and torch differ on the ids {source}; it is not saved. Use torch")


def verified_sources(bundle: Bundle, texts: Sequence[str]) -> list[list[int]]:
    """Return SENTENCES lists of ids, with language tag and without <EOS>.

    They are the first `texts`, followed by random ids if there are too few.
    """
    rng, tokenizer = random.Random(1), bundle.src_tokenizer
    rows = [ids for text in texts[:SENTENCES] if (ids := tokenizer.encode(clean_text(text)))]
    while len(rows) < SENTENCES:
        rows.append(rng.choices(range(EOS + 1, len(tokenizer)), k=rng.randint(1, 24)))
    tags = itertools.cycle([tokenizer.tag(direction.tgt) for direction in bundle.directions])
    return [[*next(tags), *row[: min(_LONGEST, bundle.max_length)]] for row in rows]


def gap(model: Transformer, source: list[int], a: list[int], b: list[int]) -> float:
    """Return the difference of torch's log-probs, in nats, where `a` and `b` part."""
    first = next(n for n, (one, other) in enumerate(zip([*a, EOS], [*b, EOS], strict=False)) if one != other)
    one, other = (float(log_probs(model, source, ids)[first]) for ids in (a, b))
    return abs(one - other)


@torch.inference_mode()
def _write(bundle: Bundle, folder: Path, n_positions: int, quantization: str) -> None:
    """Write CTranslate2's files: quantised model and vocabularies."""
    spec = specification(bundle.model, n_positions)
    tgt = bundle.tgt_tokenizer.pieces(bundle.model.possible)
    spec.register_source_vocabulary(bundle.src_tokenizer.pieces(range(len(bundle.src_tokenizer))))
    spec.register_target_vocabulary(tgt)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (tgt[i] for i in (UNK, BOS, EOS))
    spec.config.decoder_start_token = tgt[BOS]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = 1e-5
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))


@torch.no_grad()
def specification(model: Transformer, n_positions: int) -> Any:
    """Return the model as a TransformerSpec in float32, without vocabularies."""
    from ctranslate2 import specs

    config = model.config
    shape: dict[str, Any] = {
        "pre_norm": config.norm == "pre",
        "activation": specs.Activation[_ACTIVATIONS[config.activation]],
        "ffn_glu": config.activation == "swiglu",
        "rms_norm": config.normalization == "rms_norm",
        "relative_attention_bias": isinstance(model.encoder_position, T5),
    }
    if isinstance(model.encoder_position, Rope):
        shape |= {"rotary_dim": config.d_model // config.n_heads, "rotary_interleave": True}
        shape["rotary_base"] = config.position.base
    encoder = specs.TransformerEncoderSpec(config.n_encoder_layers, config.n_heads, **shape)
    decoder = specs.TransformerDecoderSpec(config.n_decoder_layers, config.n_heads, **shape)
    # Copies, because CTranslate2 quantises in place.
    encoder.embeddings[0].weight = model.src_embedding.table.weight.clone()
    rows = model.possible
    decoder.embeddings.weight = model.tgt_embedding.table.weight[rows]
    decoder.projection.weight = model.projection.weight[rows]
    decoder.projection.bias = model.projection.bias[rows]
    decoder.projection.bias[list(NEVER)] = IMPOSSIBLE
    for spec, position, norm in (
        (encoder, model.encoder_position, model.encoder_norm),
        (decoder, model.decoder_position, model.decoder_norm),
    ):
        if n_positions:
            zeros = torch.zeros(1, n_positions, config.d_model)
            spec.position_encodings.encodings = position.embed(zeros, torch.arange(n_positions))[0]
        if config.norm == "pre":
            _norm(spec.layer_norm, norm)
    for spec, layer in zip([*encoder.layer, *decoder.layer], [*model.encoder, *model.decoder], strict=True):
        norms = [residual.norm for residual in layer.residuals]
        _attention(spec.self_attention, layer.self_attention, norms[0])
        if len(norms) == 3:  # a decoder layer
            _attention(spec.attention, layer.cross_attention, norms[1])
        feed_forward = layer.feed_forward
        _linear(spec.ffn.linear_0, feed_forward.gate or feed_forward.up)
        if feed_forward.gate:
            _linear(spec.ffn.linear_0_noact, feed_forward.up)
        _linear(spec.ffn.linear_1, feed_forward.down)
        _norm(spec.ffn.layer_norm, norms[-1])
    return specs.TransformerSpec(encoder, decoder)


def _attention(spec: Any, attention: Attention, norm: nn.Module) -> None:
    """Copy an attention layer and the norm of its residual."""
    # Cross-attention has no position scheme, and a layer for q alone.
    inputs = [[attention.q], [attention.kv]] if attention.position is None else [[attention.q, attention.kv]]
    for linear, layers in zip(spec.linear, [*inputs, [attention.out]], strict=True):
        _linear(linear, *layers)
    spec.queries_scale = attention.score.scale
    if isinstance(attention.position, T5):
        spec.relative_attention_bias = attention.position.table
        spec.relative_attention_max_distance = torch.tensor(attention.position.config.max_distance, dtype=torch.int32)
    _norm(spec.layer_norm, norm)


def _linear(spec: Any, *layers: nn.Linear) -> None:
    """Copy linear layers of one input into one layer, with concatenated outputs."""
    spec.weight = torch.cat([layer.weight for layer in layers])
    spec.bias = torch.cat([layer.bias for layer in layers])


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma = norm.weight
    if isinstance(norm, nn.LayerNorm):
        spec.beta = norm.bias

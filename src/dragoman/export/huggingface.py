"""Export of a bundle to Hugging Face transformers, and its import.

config.json also holds the bundle's configuration. transformers keeps it, so a model tuned there can be loaded here.

Verification: transformers loads the export as any user would. It must encode up to 100 texts to the same ids as
Dragoman, and translate 100 lists of ids alike from one padded batch. Greedy translations may differ only after a near
tie (translation/export.py), those of beam search only if their scores differ that little.

Pegasus (pre-norm) and Marian (post-norm) compute the same function as a Transformer with sinusoids. They put all sines
before all cosines; here sines and cosines alternate. The components of the residual stream are reordered, and so is the
axis of each matrix that reads or writes it.
"""

import dataclasses
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dragoman import bundle as bundles
from dragoman import files
from dragoman.bundle import CARD, CONFIG, WEIGHTS, Bundle, evaluations, read_json
from dragoman.config import ModelConfig, SearchConfig
from dragoman.data.text import clean_text
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.explain.page import render
from dragoman.languages import primary
from dragoman.model.transformer import Transformer
from dragoman.search.search import NEVER, normalised
from dragoman.special import BOS, EOS, PAD, UNK
from dragoman.translation import export
from dragoman.translation.engine import log_probs, translate_ids

FOLDER = "huggingface"
_SPM = ("source.spm", "target.spm")
_LONGEST = 60  # pieces of a verified translation
_READS, _WRITES = 1, 0  # the axis of a weight matrix with the residual stream: input, or output


def export_bundle(folder: Path, sources: Sequence[str] = ()) -> str:
    """Write the export, verify it on the first `sources`, and return a summary."""
    import transformers

    bundle, target = bundles.load(folder), folder / FOLDER
    if setting := unsupported(bundle.model_config):
        raise UserError(f"{folder}: neither Pegasus nor Marian of transformers supports {setting}. Use ctranslate2")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    name = "PegasusForConditionalGeneration" if bundle.model_config.norm == "pre" else "MarianMTModel"

    def fill(new: Path) -> None:
        _write_model(bundle, read_json(folder / CONFIG), getattr(transformers, name), new)
        _write_tokenizer(bundle, new)
        (new / CARD).write_text(_card(bundle, folder), encoding="utf-8")
        _verify(bundle, new, sources)

    files.replace_folder(target, fill)
    return f"{target}: {name}; {export.SENTENCES} sentences verified against torch, greedy and beam search"


def load(folder: Path) -> Bundle:
    """Load an export, or else a bundle, in float32 and eval mode."""
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    if "model_type" not in config:
        return bundles.load(folder)
    if "dragoman" not in config or not (folder / WEIGHTS).is_file():
        raise UserError(f"{folder}: not a model that scripts/export.py wrote. Use such an export, or a bundle")
    src, tgt = (Tokenizer(folder / name) for name in _SPM)
    tokenizers = [src] if src.sha256 == tgt.sha256 else [src, tgt]
    info = bundles.info_from_json(config["dragoman"], tokenizers, folder / CONFIG)
    model = bundles.untrained_model(info)
    load_state_dict(model, load_file(folder / WEIGHTS), folder / WEIGHTS)
    return Bundle(model=model.eval(), **vars(info))


def _write_model(bundle: Bundle, description: dict[str, Any], kind: Any, folder: Path) -> None:
    config, search = bundle.model_config, bundle.search
    shape = {name: getattr(config, name) for name in ("d_model", "dropout", "activation_dropout", "attention_dropout")}
    for side, n_layers in (("encoder", config.n_encoder_layers), ("decoder", config.n_decoder_layers)):
        shape |= {f"{side}_layers": n_layers, f"{side}_attention_heads": config.n_heads, f"{side}_ffn_dim": config.d_ff}
    shape |= {"vocab_size": len(bundle.src_tokenizer), "max_position_embeddings": export.n_positions(bundle)}
    shape |= {"activation_function": config.activation, "scale_embedding": True, "dragoman": description}
    if config.tie != "all":
        shape |= {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": len(bundle.tgt_tokenizer)}
    ids = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}
    model = kind(kind.config_class(**shape, **ids, forced_eos_token_id=None))
    model.load_state_dict(state_dict(bundle.model), strict=False)
    model.tie_weights()
    model.generation_config = type(model.generation_config)(
        **ids,
        max_length=search.max_length(bundle.max_length) + 1,  # <BOS> is counted
        **_beam_search(search),
        suppress_tokens=list(NEVER),
        begin_suppress_tokens=[EOS],
        renormalize_logits=True,
    )
    model.save_pretrained(folder)


def _beam_search(search: SearchConfig) -> dict[str, Any]:
    if search.kind != "beam" or search.beam_size == 1:
        return {"num_beams": 1}
    penalty = search.length_penalty  # for early_stopping, see search/search.py
    return {"num_beams": search.beam_size, "length_penalty": penalty, "early_stopping": penalty != 0}


def _write_tokenizer(bundle: Bundle, folder: Path) -> None:
    # Marian's form of a tag.
    tags = {f"<2{to.tgt}>": f">>{to.tgt}<<" for to in bundle.directions if bundle.src_tokenizer.tag(to.tgt)}
    separate = bundle.model_config.tie != "all"
    names = "vocab.json", "target_vocab.json" if separate else "vocab.json"
    for spm, name, tokenizer in zip(_SPM, names, (bundle.src_tokenizer, bundle.tgt_tokenizer), strict=True):
        pieces = [tags.get(piece, piece) for piece in tokenizer.pieces(range(len(tokenizer)))]
        (folder / spm).write_bytes(tokenizer.path.read_bytes())
        (folder / name).write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}), encoding="utf-8")
    options = {"tokenizer_class": "MarianTokenizer", "source_lang": bundle.src, "target_lang": bundle.tgt}
    options |= {"pad_token": pieces[PAD], "unk_token": pieces[UNK], "bos_token": pieces[BOS], "eos_token": pieces[EOS]}
    more = {"separate_vocabs": separate, "extra_special_tokens": list(tags.values())}
    # Text never becomes a special token, and is not cleaned up.
    more |= {"split_special_tokens": True, "clean_up_tokenization_spaces": False}
    more["model_max_length"] = bundle.max_length + 2
    (folder / "tokenizer_config.json").write_text(json.dumps(options | more, indent=2), encoding="utf-8")


def _card(bundle: Bundle, folder: Path) -> str:
    """Return the bundle's card for the hub, with the scores of the run."""
    tests = [read_json(path) for path in sorted(evaluations(folder).glob("*/scores.json"))]
    sections = re.split(r"(?m)^(?=## )", (folder / CARD).read_text(encoding="utf-8"))
    languages = sorted({primary(bundle.src), primary(bundle.tgt)})
    values: dict[str, Any] = {"info": bundle, "tests": tests, "sections": sections, "languages": languages}
    return render("export/card.md.j2", autoescape=False, **values).decode()


def _verify(bundle: Bundle, folder: Path, texts: Sequence[str]) -> None:
    """Compare transformers with torch. Raises UserError unless it is a near tie."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    with warnings.catch_warnings(action="ignore"):  # a package that only normalises punctuation is missing
        tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tag = bundle.src_tokenizer.tag(bundle.tgt)
    for text in map(clean_text, texts[: export.SENTENCES]):
        theirs = tokenizer(f">>{bundle.tgt}<<{text}" if tag else text).input_ids
        if theirs != [*tag, *bundle.src_tokenizer.encode(text), EOS]:
            raise UserError(f"transformers: the export has other ids for '{text[:40]}'; it is not saved")
    sources = export.verified_sources(bundle, texts)
    inputs = tokenizer.pad({"input_ids": [[*source, EOS] for source in sources]}, return_tensors="pt")
    beam = dataclasses.replace(bundle.search, kind="beam", n_best=1)
    for search in (SearchConfig(kind="greedy", beam_size=1), beam):
        search = dataclasses.replace(search, max_length_a=0.0, max_length_b=_LONGEST)
        results = translate_ids(bundle.model, sources, search)
        rows = model.generate(**inputs, **_beam_search(search), max_length=_LONGEST + 1)
        lines = tokenizer.batch_decode(rows, skip_special_tokens=True)
        for source, (ours,), row, line in zip(sources, results, rows.tolist(), lines, strict=True):
            theirs = row[1 : row.index(EOS) if EOS in row else None]
            same = ours.ids == theirs or _is_tie(bundle, source, ours.ids, theirs, search)
            if not same or line != bundle.tgt_tokenizer.decode(theirs).strip():
                raise UserError(f"transformers: another {search.kind} translation of the ids {source}; it is not saved")


def _is_tie(bundle: Bundle, source: list[int], a: list[int], b: list[int], search: SearchConfig) -> bool:
    """Return whether only a near tie separates two translations."""
    if search.kind == "greedy":
        return export.gap(bundle.model, source, a, b) <= export.NEAR_TIE
    totals = (float(log_probs(bundle.model, source, ids).sum()) for ids in (a, b))
    first, second = (normalised(t, len(ids) + 1, search.length_penalty) for t, ids in zip(totals, (a, b), strict=True))
    return abs(first - second) <= export.NEAR_TIE


def unsupported(config: ModelConfig) -> str | None:
    """Return the first setting that neither Marian nor Pegasus supports, or None."""
    supported = {
        f"model.score={config.score}": config.score == "scaled_dot",
        f"model.position.kind={config.position.kind}": config.position.kind == "sinusoidal",
        f"model.position.base={config.position.base}": config.position.base == 10_000,
        f"model.activation={config.activation}": config.activation in ("relu", "gelu"),
        f"model.normalization={config.normalization}": config.normalization == "layer_norm",
        f"model.tie={config.tie}": config.tie in (("all",) if config.norm == "pre" else ("all", "tgt")),
    }
    return next((setting for setting in supported if not supported[setting]), None)


@torch.no_grad()
def state_dict(model: Transformer) -> dict[str, Tensor]:
    """Return the weights with the names and the order of Marian and Pegasus."""
    order = _order(model.config.d_model)
    return {name: ours if axis is None else ours.index_select(axis, order) for name, ours, axis in _tensors(model)}


@torch.no_grad()
def load_state_dict(model: Transformer, tensors: Mapping[str, Tensor], where: object) -> None:
    """Fill the model with the weights of `state_dict`, read from the file `where`."""
    order = _order(model.config.d_model).argsort()
    for name, ours, axis in _tensors(model):
        if name not in tensors or tensors[name].shape != ours.shape:
            raise UserError(f"{where}: {name} is missing or has another shape. Export the model again")
        ours.copy_(tensors[name] if axis is None else tensors[name].index_select(axis, order))


def _order(d_model: int) -> Tensor:
    return torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))


def _tensors(model: Transformer) -> Iterator[tuple[str, Tensor, int | None]]:
    """Yield the exported name, the tensor of the model, and its residual axis or None."""
    yield "final_logits_bias", model.projection.bias[None], None
    for root, module, axis in _modules(model):
        yield f"{root}.weight", module.weight, axis
        if hasattr(module, "bias"):
            yield f"{root}.bias", module.bias, None if axis == _READS else _WRITES


def _modules(model: Any) -> Iterator[tuple[str, Any, int]]:
    """Yield the exported name, the module, and the residual axis of its weight."""
    if model.config.tie == "all":
        yield "model.shared", model.src_embedding.table, _READS
    else:
        yield "model.encoder.embed_tokens", model.src_embedding.table, _READS
        yield "model.decoder.embed_tokens", model.tgt_embedding.table, _READS
    for side, last_norm in (("encoder", model.encoder_norm), ("decoder", model.decoder_norm)):
        for number, layer in enumerate(getattr(model, side)):
            root = f"model.{side}.layers.{number}"
            attentions = {"self_attn": layer.self_attention}
            if side == "decoder":
                attentions["encoder_attn"] = layer.cross_attention
            for name, attention in attentions.items():
                yield f"{root}.{name}.q_proj", attention.q, _READS
                halves = zip(attention.kv.weight.chunk(2), attention.kv.bias.chunk(2), strict=True)
                for letter, (weight, bias) in zip("kv", halves, strict=True):
                    yield f"{root}.{name}.{letter}_proj", SimpleNamespace(weight=weight, bias=bias), _READS
                yield f"{root}.{name}.out_proj", attention.out, _WRITES
            yield f"{root}.fc1", layer.feed_forward.up, _READS
            yield f"{root}.fc2", layer.feed_forward.down, _WRITES
            for name, residual in zip((*attentions, "final"), layer.residuals, strict=True):
                yield f"{root}.{name}_layer_norm", residual.norm, _WRITES
        if model.config.norm == "pre":
            yield f"model.{side}.layer_norm", last_norm, _WRITES

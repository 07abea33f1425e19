"""Export to CTranslate2: translations as in torch, or an error with the setting."""

import copy
import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman import bundle as bundles
from dragoman.bundle import Bundle
from dragoman.config import ModelConfig, PositionConfig, SearchConfig, TokenizerConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.files import included
from dragoman.model.attention import SCORES
from dragoman.model.position import POSITIONS
from dragoman.model.transformer import ACTIVATIONS, IMPOSSIBLE, NORMALIZATIONS, Transformer
from dragoman.special import EOS
from dragoman.translation import export
from dragoman.translation.engine import translate_ids
from dragoman.translation.translator import Translator

pytest.importorskip("ctranslate2")
Check = Callable[..., None]
Make = Callable[..., Any]
SHAPES: list[dict[str, Any]] = [
    *({"position": PositionConfig(kind=kind)} for kind in ("none", "integer", "unit", "sinusoidal")),
    {"position": PositionConfig(kind="learned", length=100), "norm": "post"},
    {"position": PositionConfig(kind="rope", base=500.0), "norm": "post", "normalization": "rms_norm"},
    {"position": PositionConfig(kind="t5", n_buckets=8, max_distance=20), "score": "dot"},
    {"activation": "swiglu", "n_encoder_layers": 2},
    {"activation": "gelu", "tie": "none", "n_decoder_layers": 2},
]
SEARCH = SearchConfig(beam_size=5, n_best=2, length_penalty=0.6, max_length_a=0.0, max_length_b=8)


@pytest.fixture(autouse=True)
def few_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify on fewer sentences, to save time."""
    monkeypatch.setattr(export, "SENTENCES", 10)


def sources() -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(EOS + 1, 600) for _ in range(n)] for n in (1, 2, 5, 13, 20) for _ in range(2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_network_translates_as_in_torch(
    shape: dict[str, Any], shaped: Make, engine_of: Make, assert_same: Check, tmp_path: Path
) -> None:
    bundle = shaped(**shape)
    engine = engine_of(bundle, tmp_path / "b")
    ours = translate_ids(bundle.model, sources(), SEARCH)
    assert_same(bundle.model, sources(), ours, engine.translate(sources(), SEARCH))


def test_two_vocabularies_translate_as_in_torch(
    golden: Bundle, engine_of: Make, assert_same: Check, tmp_path: Path
) -> None:
    small = TokenizerConfig(vocab_size=300)
    tgt = Tokenizer.train(["Good night.", "Hello!"] * 9, small, tmp_path / "t.model", ("en",))
    config = dataclasses.replace(golden.model_config, tie="tgt")
    model = Transformer(config, src_vocab_size=600, tgt_vocab_size=len(tgt)).eval()
    changes = {"model": model, "model_config": config, "tgt_tokenizer": tgt, "directions": []}
    engine = engine_of(dataclasses.replace(golden, **changes), tmp_path / "b", ["晚安。", ""])
    ours = translate_ids(model, sources(), SEARCH)
    assert_same(model, sources(), ours, engine.translate(sources(), SEARCH))


def test_impossible_pieces_are_left_out(golden: Bundle, engine_of: Make, assert_same: Check, tmp_path: Path) -> None:
    model = copy.deepcopy(golden.model)
    model.projection.bias[100:300] = IMPOSSIBLE
    engine = engine_of(dataclasses.replace(golden, model=model), tmp_path / "b")
    assert len(json.loads((tmp_path / "b" / "ctranslate2" / "target_vocabulary.json").read_text())) == 400
    assert_same(model, sources(), translate_ids(model, sources(), SEARCH), engine.translate(sources(), SEARCH))


def test_int8_translates_nearly_as_torch(tmp_path: Path) -> None:
    """Use the pretrained model: its translations hardly depend on rounding."""
    folder = shutil.copytree(included("data/pretrained/zh_en"), tmp_path / "bundle")
    export.export_bundle(folder)
    rows = Path("data/challenge/zh_en.tsv").read_text(encoding="utf-8").splitlines()[1:101]
    lines = [row.split("\t")[1] for row in rows]
    greedy = SearchConfig(kind="greedy")
    translators = (Translator.load(folder, engine=engine) for engine in ("torch", "ctranslate2"))
    ours, theirs = (translator.translate(lines, greedy, direction="zh_en") for translator in translators)
    assert sum(a.text == b.text for a, b in zip(ours, theirs, strict=True)) >= 0.8 * len(lines)


def test_each_choice_is_exported_or_an_error() -> None:
    tested = [ModelConfig(**shape) for shape in SHAPES]
    for kind in POSITIONS:
        supported = export.unsupported_by_ctranslate2(ModelConfig(position=PositionConfig(kind=kind))) is None
        assert supported == any(config.position.kind == kind for config in tested), kind
    for key, registry in (("score", SCORES), ("activation", ACTIVATIONS), ("normalization", NORMALIZATIONS)):
        for value in registry:
            supported = export.unsupported_by_ctranslate2(ModelConfig(**{key: value})) is None
            assert supported == any(getattr(config, key) == value for config in tested), value


def test_an_unsupported_network_is_an_error_with_its_name(shaped: Make, tmp_path: Path) -> None:
    bundles.save(shaped(score="additive"), tmp_path / "b")
    with pytest.raises(UserError, match=r"model\.score=additive"):
        export.export_bundle(tmp_path / "b")
    assert not (tmp_path / "b" / "ctranslate2").exists()


def biased(monkeypatch: pytest.MonkeyPatch, piece: int, bias: float) -> None:
    """Set the output bias of a piece in the exported network."""
    specification = export.specification

    def changed(*args: Any) -> Any:
        spec = specification(*args)
        spec.decoder.projection.bias[piece] = bias
        return spec

    monkeypatch.setattr(export, "specification", changed)


def test_an_export_that_translates_differently_is_not_written(
    golden: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles.save(golden, tmp_path / "b")
    export.export_bundle(tmp_path / "b", quantization="float32")
    before = (tmp_path / "b" / "ctranslate2" / "model.bin").read_bytes()
    biased(monkeypatch, 99, 5.0)
    with pytest.raises(UserError, match="differ on the ids"):
        export.export_bundle(tmp_path / "b")
    assert (tmp_path / "b" / "ctranslate2" / "model.bin").read_bytes() == before
    assert list((tmp_path / "b").glob(".*")) == []


def test_a_near_tie_may_be_ranked_differently(
    shaped: Make, engine_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, greedy = shaped(), SearchConfig(kind="greedy")
    bundle.model.projection.bias.zero_()
    (best, *_), *_ = (each[0].ids for each in translate_ids(bundle.model, sources(), greedy))
    twin = best + 1
    with torch.no_grad():
        bundle.model.projection.weight[twin] = bundle.model.projection.weight[best]
    biased(monkeypatch, twin, 2e-5)
    engine = engine_of(bundle, tmp_path / "b")
    ours, theirs = translate_ids(bundle.model, sources(), greedy), engine.translate(sources(), greedy)
    pieces = [{id for each in results for id in each[0].ids} for results in (ours, theirs)]
    assert twin in pieces[1]
    assert best not in pieces[1]
    assert best in pieces[0]


def test_quantized_weights_are_smaller(shaped: Make, tmp_path: Path) -> None:
    bundle = shaped(d_model=64, d_ff=256)
    bundles.save(bundle, tmp_path / "b")
    sizes = []
    for quantization in ("int8", "int16", "float32"):
        summary = export.export_bundle(tmp_path / "b", quantization=quantization)
        folder = tmp_path / "b" / "ctranslate2"
        assert summary.startswith(f"{folder}: {quantization}, ")
        assert json.loads((folder / "manifest.json").read_text())["quantization"] == quantization
        sizes.append((folder / "model.bin").stat().st_size)
    assert sizes == sorted(sizes)

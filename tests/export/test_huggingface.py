"""Export to transformers: equal translations, and equal weights after an import."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard

from dragoman import Translator, files
from dragoman import bundle as bundles
from dragoman.config import Config, DataConfig, ModelConfig, PositionConfig, SearchConfig, TokenizerConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.export import huggingface
from dragoman.model.transformer import Transformer
from dragoman.training import fit
from dragoman.translation import export

transformers = pytest.importorskip("transformers")
TEXTS = ["好久不见", "我爱你。", "a <s> b</s>", "𰻝"]
SHAPES: list[dict[str, Any]] = [
    {"norm": "pre"},
    {"norm": "post", "activation": "gelu", "n_encoder_layers": 2},
    {"norm": "post", "tie": "tgt"},
]


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def folder(request: pytest.FixtureRequest, golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported bundle with random weights; with tie=tgt it has two vocabularies."""
    torch.manual_seed(3)
    folder, bundle = tmp_path_factory.mktemp("model"), bundles.load(golden)
    bundle.model_config = dataclasses.replace(bundle.model_config, **request.param)
    if "tie" in request.param:
        texts, small = ["Good night."] * 9, TokenizerConfig(vocab_size=300)
        bundle.tgt_tokenizer = Tokenizer.train(texts, small, folder / "english.model", ("en",))
        bundle.directions = bundle.directions[:1]
        bundle.search = dataclasses.replace(bundle.search, kind="greedy")
    bundle.model = bundles.untrained_model(bundle)
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            parameter.mul_(2).add_(0.1 * torch.randn_like(parameter))
    bundles.save(bundle, folder / "bundle")
    with pytest.MonkeyPatch.context() as monkeypatch:  # to save time
        monkeypatch.setattr(export, "SENTENCES", 8)
        monkeypatch.setattr(huggingface, "_LONGEST", 12)
        huggingface.export_bundle(folder / "bundle", TEXTS)
    return folder / "bundle"


def test_an_export_loads_with_the_same_weights(folder: Path, tmp_path: Path) -> None:
    for auto in (transformers.AutoModelForSeq2SeqLM, transformers.AutoTokenizer):
        auto.from_pretrained(folder / "huggingface").save_pretrained(tmp_path / "tuned")
    ours = bundles.load(folder)
    for theirs in map(huggingface.load, (folder / "huggingface", tmp_path / "tuned")):
        expected, tensors = ours.model.state_dict(), theirs.model.state_dict()
        assert all(torch.equal(tensors.pop(name), tensor) for name, tensor in expected.items())
        assert not tensors
        assert all(getattr(theirs, name) == getattr(ours, name) for name in ("model_config", "search", "meta"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zh_en", "en_zh"])
def test_transformers_translates_alike_with_the_included_models(
    name: str, pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    texts = [pair[name == "en_zh"] for pair in pairs]
    folder = shutil.copytree(files.included("data/pretrained") / name, tmp_path / name)
    huggingface.export_bundle(folder, texts)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "huggingface")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "huggingface")
    ids = model.generate(**tokenizer(texts, return_tensors="pt", padding=True), num_beams=1, max_new_tokens=100)
    ours = Translator.load(folder, engine="torch").translate(texts, SearchConfig(kind="greedy", max_length_b=100))
    assert len(texts) == 100
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == [result.text for result in ours]


def test_a_run_starts_from_an_export(folder: Path) -> None:
    directions = bundles.load_info(folder).directions
    everything, last = DataConfig(directions=list(map(str, directions))), DataConfig(**directions[-1]._asdict())
    starts = [(everything, folder), (everything, folder / "huggingface"), (last, folder)]
    configs = [fit.adapted(Config(data=data, init_from=str(path))) for data, path in starts]
    assert configs[0].model == configs[1].model == configs[2].model
    assert len({config.data.tokenizer.vocabulary for config in configs}) == 1


def test_a_language_code_becomes_the_tag(folder: Path) -> None:
    info = bundles.load_info(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder / "huggingface")
    for _, tgt in info.directions:
        expected = [*info.src_tokenizer.tag(tgt), *info.src_tokenizer.encode("I love >>en<<")]
        assert theirs(f">>{tgt}<<I love >>en<<").input_ids[:-1] == expected


def test_what_cannot_be_expressed_is_named() -> None:
    position = [PositionConfig(kind=kind) for kind in ("rope", "t5", "alibi", "learned", "none")]
    shapes: list[dict[str, Any]] = [{"position": each} for each in (*position, PositionConfig(base=500.0))]
    shapes += [{"activation": "swiglu"}, {"normalization": "rms_norm"}, {"score": "dot"}, {"score": "additive"}]
    shapes += [{"tie": "tgt"}, {"tie": "none", "norm": "post"}]
    for shape in shapes:
        key, value = next(iter(shape.items()))
        setting = huggingface.unsupported(dataclasses.replace(ModelConfig(), **shape)) or ""
        assert setting.startswith(f"model.{key}.") if key == "position" else setting == f"model.{key}={value}"


def test_an_error_leaves_the_older_export(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(golden, tmp_path / "bundle"))
    monkeypatch.setattr(export, "SENTENCES", 2)
    monkeypatch.setattr(huggingface, "_LONGEST", 12)
    huggingface.export_bundle(folder)
    before, right = (folder / "huggingface" / "model.safetensors").read_bytes(), huggingface.state_dict

    def wrong(model: Transformer) -> dict[str, torch.Tensor]:
        return right(model) | {"model.decoder.layer_norm.bias": torch.ones(model.config.d_model)}

    monkeypatch.setattr(huggingface, "state_dict", wrong)
    with pytest.raises(UserError, match="another greedy translation"):
        huggingface.export_bundle(folder)
    assert (folder / "huggingface" / "model.safetensors").read_bytes() == before
    assert not list(folder.glob(".*"))


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    with pytest.raises(UserError, match=r"not a model that scripts/export\.py wrote"):
        huggingface.load(tmp_path)


def test_the_card_has_scores_for_the_hub(golden: Path, tmp_path: Path) -> None:
    folder, test = Path(shutil.copytree(golden, tmp_path / "bundle")), tmp_path / "evaluation" / "news"
    with open(folder / "README.md", "a") as card:
        card.write("\n## Added by hand\n\nKept.\n")
    test.mkdir(parents=True)
    score = {"name": "BLEU", "score": 12.3, "signature": "nrefs:1|case:mixed"}
    scores = {"scores": {"bleu": score}, "test_set": "news: 1", "direction": "zh_en"}
    (test / "scores.json").write_text(json.dumps(scores))
    data = ModelCard(huggingface._card(bundles.load(folder), folder)).data
    assert (data.language, data.pipeline_tag) == (["en", "zh"], "translation")
    (result,) = data.eval_results
    assert (result.dataset_name, result.metric_type, result.metric_value) == ("news: 1", "bleu", 12.3)
    text = huggingface._card(bundles.load(folder), folder)
    assert "AutoModelForSeq2SeqLM" in text
    assert "python translate.py" not in text
    assert text.endswith("\n## Added by hand\n\nKept.\n")

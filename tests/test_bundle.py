"""Bundles: saving, loading, choosing and averaging."""

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dragoman import bundle as bundles
from dragoman import files
from dragoman.bundle import Bundle
from dragoman.config import PositionConfig, TokenizerConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.export import huggingface
from dragoman.languages import Direction
from dragoman.model.transformer import Transformer
from dragoman.translation.translator import Translator

GOLDEN = Path(__file__).parent / "golden" / "bundle"
ZH_EN, EN_ZH = Direction("zh", "en"), Direction("en", "zh")
SRC, TGT = torch.tensor([[5, 9, 7, 3]]), torch.tensor([[2, 8, 6]])


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """The golden bundle; no test may change it."""
    return bundles.load(GOLDEN)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle that a test may damage."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "bundle"))


def logits(bundle: Bundle) -> torch.Tensor:
    with torch.no_grad():
        return bundle.model(SRC, TGT, SRC == 0)


def edit_config(folder: Path, change: Callable[[dict], object]) -> None:
    """Change config.json, and the manifest with it."""
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "manifest.json").unlink()
    entries = {"format_version": 1, "files": bundles.entries(folder)}
    (folder / "manifest.json").write_text(json.dumps(entries))


def refusal(folder: Path) -> str:
    """Return the message, of one line, with which loading fails."""
    with pytest.raises(UserError) as caught:
        bundles.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_saving_and_loading_changes_nothing(bundle: Bundle, tmp_path: Path) -> None:
    bundles.save(bundle, tmp_path / "b")
    (tmp_path / "b" / "README.md").write_text("my notes")
    loaded = bundles.load(tmp_path / "b")
    assert torch.equal(logits(loaded), logits(bundle))
    for name in ("model_config", "search", "meta", "src", "tgt", "directions", "max_length"):
        assert getattr(loaded, name) == getattr(bundle, name), name
    assert loaded.src_tokenizer.sha256 == loaded.tgt_tokenizer.sha256 == bundle.src_tokenizer.sha256
    assert not loaded.model.training


def test_separate_tokenizers_are_two_files(bundle: Bundle, tmp_path: Path) -> None:
    config = TokenizerConfig(vocab_size=300)
    other = Tokenizer.train(["Good night.", "Hello!"] * 9, config, tmp_path / "t.model", ("en",))
    model_config = dataclasses.replace(bundle.model_config, tie="tgt")
    model = Transformer(model_config, src_vocab_size=len(bundle.src_tokenizer), tgt_vocab_size=len(other))
    changes = {"tgt_tokenizer": other, "model": model.eval(), "model_config": model_config}
    separate = dataclasses.replace(bundle, directions=[], **changes)
    bundles.save(separate, tmp_path / "b")
    assert {"src.model", "tgt.model"} <= {path.name for path in (tmp_path / "b").iterdir()}
    loaded = bundles.load(tmp_path / "b")
    assert torch.equal(logits(loaded), logits(separate))
    assert loaded.tgt_tokenizer.sha256 == other.sha256 != loaded.src_tokenizer.sha256


@pytest.mark.parametrize(("kind", "score"), [("sinusoidal", "additive"), ("t5", "dot"), ("transformer_xl", "dot")])
def test_each_parameter_is_stored_once(kind: str, score: str, bundle: Bundle, tmp_path: Path) -> None:
    """Tied matrices and the parameters that layers share come back as one, too."""
    torch.manual_seed(1)
    position = PositionConfig(kind=kind, length=64)
    config = dataclasses.replace(bundle.model_config, n_decoder_layers=2, score=score, position=position)
    size = len(bundle.src_tokenizer)
    model = Transformer(config, src_vocab_size=size, tgt_vocab_size=size).eval()
    changed = dataclasses.replace(bundle, model=model, model_config=config)
    bundles.save(changed, tmp_path / "b")
    stored, loaded = load_file(tmp_path / "b" / "model.safetensors"), bundles.load(tmp_path / "b")
    assert torch.equal(logits(loaded), logits(changed))
    assert loaded.model.projection.weight is loaded.model.src_embedding.table.weight
    n, *others = (sum(t.numel() for t in x) for x in (model.parameters(), loaded.model.parameters(), stored.values()))
    assert others == [n, n - size]  # a bias of zeros is not stored


def test_float16_halves_the_file_and_loads_as_float32(bundle: Bundle, tmp_path: Path) -> None:
    for dtype in ("float32", "float16"):
        bundles.save(bundle, tmp_path / dtype, dtype=dtype)
    sizes = [(tmp_path / dtype / "model.safetensors").stat().st_size for dtype in ("float16", "float32")]
    assert sizes[0] < 0.6 * sizes[1]
    loaded = bundles.load(tmp_path / "float16")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert torch.allclose(logits(loaded), logits(bundle), atol=0.02)


def test_saving_over_a_bundle_replaces_it(folder: Path, bundle: Bundle) -> None:
    assert bundles.locate(folder.parent) == bundles.locate(folder) == folder
    (folder / "ctranslate2").mkdir()
    bundles.save(dataclasses.replace(bundle, meta={"name": "second"}), folder)
    assert bundles.load(folder.parent).meta["name"] == "second"
    assert [path.name for path in folder.parent.iterdir()] == ["bundle"]
    assert not (folder / "ctranslate2").exists()


def test_saving_over_anything_else_is_an_error(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    for target in (tmp_path, tmp_path / "precious.txt"):
        with pytest.raises(UserError, match="not a bundle"):
            bundles.save(bundle, target)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_a_damaged_or_missing_file_is_named(folder: Path) -> None:
    for name in ("config.json", "model.safetensors", "joint.model", "manifest.json"):
        content = (folder / name).read_bytes()
        changed = bytearray(content)
        changed[len(content) // 2] ^= 1
        for damaged in (content[:-1], content[: len(content) // 2], bytes(changed), b""):
            (folder / name).write_bytes(damaged)
            assert str(folder) in refusal(folder)
        (folder / name).unlink()
        assert f"{name} is missing" in refusal(folder)
        (folder / name).write_bytes(content)


def test_folders_that_are_no_bundles_are_an_error(tmp_path: Path) -> None:
    assert "nowhere: no such folder. Name a run" in refusal(tmp_path / "nowhere")
    assert "config.json is missing. Name a run" in refusal(tmp_path)
    for content, message in (('{"model_type": "marian"}', "manifest.json is missing"), ("{", "not a JSON object")):
        (tmp_path / "config.json").write_text(content)
        assert message in refusal(tmp_path)


MISTAKES: dict[str, Callable[[dict], object]] = {
    "Update Dragoman": lambda c: c.update(format_version=2),
    "dropout=nan": lambda c: c["model"].update(dropout=float("nan")),
    "model.position.kind=os.system": lambda c: c["model"]["position"].update(kind="os.system"),
    "'tgt'": lambda c: c.pop("tgt"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_wrong_setting_is_an_error_with_its_key(folder: Path, message: str) -> None:
    edit_config(folder, MISTAKES[message])
    assert message in refusal(folder)


def test_unknown_fields_are_ignored_with_a_note(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    edit_config(folder, lambda c: (c["model"].update(varlen=True), c["search"].update(patience=1)))
    assert torch.equal(logits(bundles.load(folder)), logits(bundles.load(GOLDEN)))
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == 2
    assert "'varlen'" in "".join(messages)
    assert "'patience'" in "".join(messages)


def test_absent_fields_take_their_defaults(folder: Path) -> None:
    edit_config(folder, lambda c: (c["model"].pop("activation_dropout"), c.pop("directions"), c.pop("meta")))
    loaded = bundles.load(folder)
    assert (loaded.directions, loaded.max_length) == ([("zh", "en")], 256)
    assert torch.equal(logits(loaded), logits(bundles.load(GOLDEN)))


def test_the_card_shows_recorded_provenance(bundle: Bundle, tmp_path: Path) -> None:
    data, scores = {"corpora": ["phrasebook (CC0)", "b"]}, {"test": {"bleu": 35.2}}
    meta = {"name": "mine", "data": data, "scores": scores, "loss": float("nan"), "path": tmp_path}
    bundles.save(dataclasses.replace(bundle, meta=meta), tmp_path / "b")
    card = (tmp_path / "b" / "README.md").read_text()
    for expected in (
        "# mine: a translation model, zh to en and en to zh\n",
        "`--direction en_zh`",
        "\n## Data\n\n- corpora:\n  - phrasebook (CC0)\n  - b\n",
        "\n## Scores\n\n- scores:\n  - test:\n    - bleu: 35.2\n",
        "translate.py --model",
        "## Licence\n",
    ):
        assert expected in card
    # JSON has neither NaN nor paths
    loaded = bundles.load(tmp_path / "b").meta
    assert (loaded["loss"], loaded["path"], loaded["data"]) == (None, str(tmp_path), data)


@pytest.fixture
def runs(bundle: Bundle, tmp_path: Path) -> Path:
    """runs/ with models of different directions, from the oldest to the newest."""
    there, back = (dataclasses.replace(bundle, src=s, tgt=t, directions=[]) for s, t in (ZH_EN, EN_ZH))
    models = {"old": there, "new": there, "back": back, "smoke": there, "copy": there}
    for age, (name, model) in enumerate(models.items()):
        bundles.save(model, tmp_path / "runs" / name / "bundle")
        os.utime(tmp_path / "runs" / name / "bundle" / "config.json", (age, age))
    return tmp_path / "runs"


def test_the_newest_fitting_bundle_is_chosen(runs: Path, bundle: Bundle) -> None:
    assert bundles.newest(runs, lambda known: known.src == "zh") == runs / "new" / "bundle"
    assert bundles.newest(runs, lambda known: True) == runs / "back" / "bundle"
    with pytest.raises(UserError, match=r"no model for French \(found .*en_zh"):
        bundles.newest(runs, lambda known: known.src == "fr", "French")


def test_an_included_bundle_is_used_if_no_run_fits(runs: Path, bundle: Bundle, tmp_path: Path, monkeypatch) -> None:
    box = tmp_path / "pretrained"
    monkeypatch.setattr(files, "included", lambda path: box)
    assert bundles.included() == []
    assert bundles.evaluations(tmp_path / "run" / "bundle") == tmp_path / "run" / "evaluation"
    assert bundles.evaluations(tmp_path / "run" / "mean") == tmp_path / "run" / "evaluation_mean"
    bundles.save(dataclasses.replace(bundle, src="fr", tgt="en", directions=[]), box / "fr_en")
    assert bundles.newest(runs, lambda known: known.src == "fr") == box / "fr_en"
    assert bundles.newest(runs, lambda known: True) == runs / "back" / "bundle"


def test_included_bundles_are_whole_small_and_exportable() -> None:
    folders = bundles.included()
    assert [folder.name for folder in folders] == ["en_zh", "zh_en"]
    assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) <= 36e6
    for folder in folders:
        assert huggingface.unsupported(bundles.load(folder).model_config) is None
    translator = Translator.load("data/pretrained/zh_en", engine="torch")
    assert [result.text for result in translator.translate(["好久不见"])] == ["Long time no see"]


def test_a_bundle_is_found_between_two_renames(bundle: Bundle, tmp_path: Path) -> None:
    previous = tmp_path / "run" / "bundle.previous"
    bundles.save(bundle, previous)
    assert bundles.load(tmp_path / "run" / "bundle").meta["name"] == "golden"
    assert bundles.newest(tmp_path, lambda known: True) == previous

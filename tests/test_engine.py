"""Which engine translates: the export where it is whole and its own bundle's, torch otherwise, and one line why."""

import dataclasses
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from doors import ROOT, Door
from dragoman import bundle as bundles
from dragoman import engine as room
from dragoman.bundle import Bundle
from dragoman.ctranslate2_engine import FOLDER
from dragoman.errors import UserError
from dragoman.export.ctranslate2 import export
from dragoman.model.shape import PositionConfig
from dragoman.model.transformer import Transformer
from dragoman.search.hypothesis import SearchConfig
from dragoman.translator import Translator
from tiny import SENTENCES, make_bundle

pytest.importorskip("ctranslate2")


@pytest.fixture(scope="module")
def exported(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a float32 export, to be copied."""
    folder = tmp_path_factory.mktemp("exported") / "runs" / "tiny" / "bundle"
    bundles.save(tiny_bundle, folder)
    export(folder, SENTENCES, quantization="float32")
    return folder


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """A copy that may be spoilt."""
    return Path(shutil.copytree(exported, tmp_path / "runs" / "tiny" / "bundle"))


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines said since it was last asked."""
    caplog.set_level(logging.WARNING, logger="dragoman")

    def since() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    return since


def test_the_export_is_taken_on_a_cpu_and_writes_what_torch_writes(
    folder: Path, told: Callable[[], list[str]]
) -> None:
    fast, slow = Translator.load(folder), Translator.load(folder, engine="torch")
    assert (fast.engine.name, slow.engine.name) == ("ctranslate2", "torch")
    for found, expected in zip(fast.translate(SENTENCES), slow.translate(SENTENCES), strict=True):
        assert found.text == expected.text
        assert found.hypotheses[0].tokens == expected.hypotheses[0].tokens
        assert found.hypotheses[0].score == pytest.approx(expected.hypotheses[0].score, abs=1e-3)
    assert fast.score(SENTENCES[:2], SENTENCES[5:7]) == slow.score(SENTENCES[:2], SENTENCES[5:7])
    assert told() == []


def test_what_it_does_not_do_is_done_by_torch_and_told_once(
    folder: Path, told: Callable[[], list[str]]
) -> None:
    fast, slow = Translator.load(folder), Translator.load(folder, engine="torch")
    sample = SearchConfig(kind="sample", seed=3, max_length_a=0.0, max_length_b=5)
    for _ in range(2):
        drawn, expected = (t.translate(SENTENCES[:2], sample) for t in (fast, slow))
        assert [translation.text for translation in drawn] == [translation.text for translation in expected]
    (line,) = told()
    assert "sample" in line
    assert "torch" in line
    endless = SearchConfig(kind="greedy", max_length_b=5000)
    assert "positions" in str(fast.engine._fast and fast.engine._fast.refuses(endless, 24))


def spoil_weights(folder: Path) -> None:
    with (folder / FOLDER / "model.bin").open("r+b") as file:
        file.seek(-1000, 2)
        file.write(b"\x01\x02\x03\x04")


def shorten(folder: Path) -> None:
    path = folder / FOLDER / "model.bin"
    path.write_bytes(path.read_bytes()[:-1])


def lie_about_a_size(folder: Path) -> None:
    """A model.bin whose first variable claims more than it has, with a manifest that vouches for it."""
    from dragoman import untrusted

    path = folder / FOLDER / "model.bin"
    data = bytearray(path.read_bytes())
    at = data.index(b"decoder/embeddings/weight\x00") + len(b"decoder/embeddings/weight\x00") + 1
    data[at : at + 4] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(bytes(data))
    manifest = json.loads((folder / FOLDER / "manifest.json").read_text())
    manifest["files"]["model.bin"] = {"size": len(data), "sha256": untrusted.sha256(path)}
    (folder / FOLDER / "manifest.json").write_text(json.dumps(manifest))


def link_out(folder: Path) -> None:
    path = folder / FOLDER / "model.bin"
    outside = folder.parents[2] / "model.bin"
    path.rename(outside)
    path.symlink_to(outside)


def retrain(folder: Path) -> None:
    """Another model in the same folder, as when files are copied over one another."""
    other = folder.parents[2] / "other"
    bundles.save(make_bundle(folder.parents[2] / "tokenizer", seed=2), other)
    for path in other.iterdir():
        shutil.copy(path, folder / path.name)


SPOILT = {
    "sha256": spoil_weights,
    "truncated or changed": shorten,
    "not as large as its shape": lie_about_a_size,
    "leads out": link_out,
    "another model": retrain,
    "other files": lambda folder: (folder / FOLDER / "vmap.txt").write_text(""),
    "other files ": lambda folder: (folder / FOLDER / "shared_vocabulary.json").unlink(),
    "not JSON": lambda folder: (folder / FOLDER / "manifest.json").write_text("{"),
    "unknown field": lambda folder: (folder / FOLDER / "manifest.json").write_text(
        (folder / FOLDER / "manifest.json").read_text().replace('"library"', '"labrary"')
    ),
    "format": lambda folder: (folder / FOLDER / "manifest.json").write_text('{"format_version": 99}'),
}


@pytest.mark.parametrize("why", SPOILT)
def test_a_damaged_foreign_or_stale_export_is_noticed_and_torch_does_it(
    folder: Path, why: str, told: Callable[[], list[str]]
) -> None:
    SPOILT[why](folder)
    translator = Translator.load(folder)
    assert translator.engine.name == "torch"
    (line,) = told()
    assert why.strip() in line
    assert line.endswith("torch does it")
    with pytest.raises(UserError, match=why.strip()):
        Translator.load(folder, engine="ctranslate2")


def test_without_an_export_torch_is_taken_in_silence_and_asking_names_the_command(
    tiny_bundle_folder: Path, told: Callable[[], list[str]]
) -> None:
    assert Translator.load(tiny_bundle_folder).engine.name == "torch"
    assert told() == []
    with pytest.raises(UserError, match=r"scripts/export.py --model .* --to ctranslate2"):
        Translator.load(tiny_bundle_folder, engine="ctranslate2")


def test_what_cannot_be_expressed_falls_back_by_name(
    tiny_bundle: Bundle, tmp_path: Path, told: Callable[[], list[str]]
) -> None:
    config = dataclasses.replace(tiny_bundle.model_config, position=PositionConfig(kind="alibi"))
    sizes = {
        "src_vocab_size": len(tiny_bundle.src_tokenizer),
        "tgt_vocab_size": len(tiny_bundle.tgt_tokenizer),
    }
    bundle = dataclasses.replace(tiny_bundle, model=Transformer(config, **sizes).eval(), model_config=config)
    bundles.save(bundle, tmp_path / "bundle")
    assert Translator.load(tmp_path / "bundle").engine.name == "torch"
    assert told() == []
    assert Translator.load(tmp_path / "bundle", engine="ctranslate2").engine.name == "torch"
    assert "model.position.kind=alibi" in told()[0]


def test_a_machine_without_the_library_is_told_how_to_get_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert Translator.load(folder).engine.name == "torch"
    with pytest.raises(UserError, match="pip install 'ctranslate2"):
        Translator.load(folder, engine="ctranslate2")


def test_unknown_engines_and_other_devices_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"did you mean 'ctranslate2'.*auto, torch, ctranslate2"):
        Translator.load(folder, engine="ctranslate")
    with pytest.raises(UserError, match="--device cuda"):
        Translator.load(folder, "cuda", engine="ctranslate2")


def test_a_gpu_is_preferred_where_torch_has_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctranslate2
    import torch

    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 1)
    monkeypatch.setattr(room, "choose_device", lambda name="auto": torch.device("cuda"))
    assert not room._on_cpu("auto")
    monkeypatch.setattr(room, "choose_device", lambda name="auto": torch.device("cpu"))
    assert room._on_cpu("auto")
    assert room._on_cpu("cpu")


def test_the_door_takes_either_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    door = Door("translate.py", folder.parents[2], monkeypatch, capfdbinary)
    by = {engine: door(*SENTENCES[:3], "--engine", engine).out for engine in room.ENGINES}
    assert by["auto"] == by["torch"] == by["ctranslate2"]
    rows = [door("好久不见", "--json", "--n-best", "2", "--engine", e).out for e in room.ENGINES]
    for row in map(json.loads, rows):
        assert row["tokens"] == json.loads(rows[0])["tokens"]
        assert row["token_scores"] == pytest.approx(json.loads(rows[0])["token_scores"], abs=1e-3)
    assert "auto, torch, ctranslate2" in door.refused("好", "--engine", "marian")
    export_door = Door("scripts/export.py", door.home, monkeypatch, capfdbinary)
    assert "choose one of ctranslate2" in export_door.refused("--model", "runs/tiny", "--to", "onnx")
    assert "int8, int16, float32" in export_door.refused(
        "--model", "runs/tiny", "--to", "ctranslate2", "--quantization", "int4"
    )
    assert "there is no bundle" in export_door.refused("--model", "nowhere", "--to", "ctranslate2")
    assert b"int8" in export_door("--model", "runs/tiny", "--to", "ctranslate2").out


def loaded(folder: Path, *options: str) -> tuple[bytes, set[str]]:
    """What translate.py says and which packages it imports, by a process of its own."""
    command = [sys.executable, "-X", "importtime", str(ROOT / "translate.py"), "好久不见", *options]
    done = subprocess.run(command, capture_output=True, cwd=folder.parents[2], timeout=120, check=True)
    names = [line.rpartition(b"|")[2].strip() for line in done.stderr.splitlines() if b"import time:" in line]
    return done.stdout, {name.partition(b".")[0].decode() for name in names}


def test_a_cold_start_with_an_export_imports_none_of_the_heavy_libraries(folder: Path) -> None:
    heavy = {
        "torch",
        "lightning",
        "datasets",
        "numpy",
        "omegaconf",
        "hydra",
        "safetensors",
        "sacrebleu",
    }
    out, names = loaded(folder)
    assert names & heavy == set()
    assert "ctranslate2" in names
    with_torch, names = loaded(folder, "--engine", "torch")
    assert with_torch == out
    superfluous = {
        "lightning",
        "datasets",
        "pandas",
        "transformers",
        "scipy",
        "matplotlib",
        "ctranslate2",
        "sympy",
    }
    assert names & superfluous == set()


def test_one_line_on_stderr_says_that_torch_does_it(folder: Path) -> None:
    shorten(folder)
    command = [sys.executable, str(ROOT / "translate.py"), "好久不见", "--model", str(folder)]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True, text=True)
    (line,) = done.stderr.splitlines()
    assert line.startswith("note: ")
    assert "torch does it" in line

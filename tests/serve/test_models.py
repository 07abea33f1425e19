"""Models of a server while their folders change."""

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dragoman import bundle as bundles
from dragoman import files
from dragoman.bundle import MANIFEST
from dragoman.errors import UserError
from dragoman.serve.app import create_app
from dragoman.serve.models import Model, watch
from dragoman.translation import export

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle"


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run with a bundle, which may be changed."""
    shutil.copytree(GOLDEN, tmp_path / "run" / "bundle")
    return tmp_path / "run"


def test_a_new_bundle_is_taken_and_its_step_shown(run_folder: Path) -> None:
    model = Model(run_folder)
    before = model.translator
    model.refresh()
    assert model.translator is before
    better = bundles.load(run_folder)
    better.meta["validation"] = {"step": 4321, "bleu": 50.0}
    bundles.save(better, run_folder / "bundle")
    model.refresh()
    assert model.translator is not before
    status = model.status
    assert (status["step"], status["bleu"], len(status["history"])) == (4321, 50.0, 2)
    assert status["translation"]


def test_an_export_is_taken_when_the_training_has_ended(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(export, "SENTENCES", 2)
    model = Model(run_folder)
    assert model.translator.engine == "torch"
    export.export_bundle(run_folder / "bundle")
    model.refresh()
    assert model.translator.engine == "ctranslate2"
    assert len(model.history) == 1
    shutil.rmtree(run_folder)
    model.refresh()
    assert model.translator.translate(["你好"])[0].text == "Hello"


@pytest.mark.parametrize("damage", ["gone", "weights", "config"])
def test_the_old_model_goes_on_when_the_folder_is_damaged(run_folder: Path, damage: str) -> None:
    model, bundle = Model(run_folder), run_folder / "bundle"
    if damage == "gone":
        shutil.rmtree(run_folder)
    else:
        name = {"weights": bundles.WEIGHTS, "config": bundles.CONFIG}[damage]
        (bundle / name).write_bytes(b"{}")
        (bundle / "manifest.json").touch()
    model.refresh()
    assert "stays in use" in model.status["error"]
    assert model.translator.translate(["你好"])[0].text == "Hello"
    assert model.translator.attend("你好", "Hello").maps
    if damage == "gone":
        shutil.copytree(GOLDEN, bundle)
        model.refresh()
        assert "error" not in model.status


def test_an_included_model_needs_no_cache(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "included", lambda path: run_folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(run_folder / ("x" * 300)))  # can be neither made nor looked up
    model = Model(run_folder / "bundle")
    model.refresh()
    assert (model.translator.engine, "error" in model.status) == ("torch", False)


def test_two_models_of_one_direction_are_an_error(run_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="same direction"):
        create_app([Model(run_folder), Model(GOLDEN)], tmp_path / "suggestions.jsonl")


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    import serve  # type: ignore[import-not-found]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        arguments: list[Any] = ["--model", str(GOLDEN), "--port", str(listener.getsockname()[1])]
        assert serve.main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_a_training_is_watched_while_it_runs(tmp_path: Path) -> None:
    settings = [f"run_dir={tmp_path / 'run'}", "training.monitor=loss", "trainer.max_steps=300"]
    command = [sys.executable, "train.py", "experiment=smoke", *settings, "trainer.validate_every=30"]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL) as training:
        while not (tmp_path / "run" / "bundle" / MANIFEST).exists():
            assert training.poll() is None
            time.sleep(0.1)
        models, steps = [Model(tmp_path / "run")], []
        Thread(target=watch, args=[models], daemon=True).start()
        with TestClient(create_app(models, tmp_path / "suggestions.jsonl")) as client:
            while training.poll() is None:
                answer = client.post("/translate", json={"q": "好久不见", "source": "zh", "target": "en"})
                assert answer.status_code == 200
                (model,) = client.get("/health").json()["models"]
                steps.append(model["step"])
                time.sleep(0.2)
    assert training.returncode == 0
    assert steps == sorted(steps)
    assert len(set(steps)) >= 3  # bundles loaded while the training ran

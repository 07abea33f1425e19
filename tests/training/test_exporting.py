"""A finished run leaves an export where it can, and is finished where it cannot."""

from pathlib import Path

import pytest

from dragoman import bundle as bundles
from dragoman.bundle import Bundle
from dragoman.training.exporting import export_bundle
from tiny import SENTENCES


def test_a_finished_bundle_gets_an_export_that_is_used(tiny_bundle: Bundle, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    from dragoman.translator import Translator

    bundles.save(tiny_bundle, tmp_path / "bundle")
    said: list[str] = []
    export_bundle(tmp_path / "bundle", SENTENCES, said.append)
    assert len(said) == 1
    assert "int8" in said[0]
    assert Translator.load(tmp_path / "bundle").engine.name == "ctranslate2"


@pytest.mark.parametrize("error", [RuntimeError("the disk burns"), MemoryError("the disk burns")])
def test_no_failure_gets_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    pytest.importorskip("ctranslate2")
    from dragoman.export import ctranslate2

    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(ctranslate2, "export", fail)
    said: list[str] = []
    export_bundle(tmp_path, SENTENCES, said.append)
    assert said == ["no CTranslate2 export: the disk burns"]


def test_without_the_library_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said: list[str] = []
    export_bundle(tmp_path, SENTENCES, said.append)
    assert said == []
    assert not list(tmp_path.iterdir())

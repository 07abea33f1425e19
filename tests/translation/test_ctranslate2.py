"""The CTranslate2 engine and its choice."""

import dataclasses
import json
import logging
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman import bundle as bundles
from dragoman import files
from dragoman.bundle import Bundle
from dragoman.config import PositionConfig, SearchConfig
from dragoman.errors import UserError
from dragoman.special import EOS
from dragoman.translation.ctranslate2 import CTranslate2Engine
from dragoman.translation.engine import translate_ids
from dragoman.translation.export import export_bundle
from dragoman.translation.translator import Translator

library = pytest.importorskip("ctranslate2")
Network = tuple[Bundle, CTranslate2Engine]
Check = Callable[..., None]
Make = Callable[..., Any]
Notes = Callable[[], list[str]]
LINES = ["晚安。", "大家好！", "2026年你好吗？老样子。", "", "……"]
# Every sentence has the same length cap, at which both engines stop in the same way.
SEARCHES = [
    SearchConfig(kind="greedy", max_length_a=0.0, max_length_b=12),
    SearchConfig(beam_size=4, n_best=4, max_length_a=0.0, max_length_b=12),
    SearchConfig(beam_size=5, n_best=2, length_penalty=0.6, max_length_a=0.0, max_length_b=3),
    SearchConfig(beam_size=3, length_penalty=0.0, max_length_a=0.0, max_length_b=8),
]
RNG = random.Random(1)
SOURCES = [[RNG.randrange(EOS + 1, 600) for _ in range(n)] for n in (1, 2, 5, 8, 13) for _ in range(2)]


def edit_manifest(folder: Path, **changes: Any) -> None:
    path = folder / "ctranslate2" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture(scope="module")
def exported(golden_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden bundle with a float32 export; not to be changed."""
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    shutil.copytree(golden_folder, folder)
    export_bundle(folder, LINES, quantization="float32")
    edit_manifest(folder, max_positions=None)  # a field of version 0.1
    return folder


@pytest.fixture
def notes(caplog: pytest.LogCaptureFixture) -> Notes:
    """A function that returns the log messages since its last call."""
    caplog.set_level(logging.WARNING, logger="dragoman")

    def since() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return since


@pytest.fixture(scope="module")
def endless(shaped: Make, engine_of: Make, tmp_path_factory: pytest.TempPathFactory) -> Network:
    """A random network whose hypotheses all reach the length cap, and its export."""
    bundle = shaped()
    with torch.no_grad():
        bundle.model.projection.weight[:EOS].mul_(30)  # <PAD>, <UNK> and <BOS> are never produced
    return bundle, engine_of(bundle, tmp_path_factory.mktemp("endless") / "bundle")


def test_hypotheses_and_scores_are_those_of_torch(endless: Network, assert_same: Check) -> None:
    bundle, fast = endless
    for search in SEARCHES:
        ours, counts = translate_ids(bundle.model, SOURCES, search), []
        for scored in (True, False):
            assert_same(bundle.model, SOURCES, ours, fast.translate(SOURCES, search, scored=scored))
        alone = fast.translate(SOURCES[::-1], search, batch_tokens=1, progress=counts.append)[::-1]
        assert_same(bundle.model, SOURCES, ours, alone)
        assert counts == list(range(1, len(SOURCES) + 1))
    assert fast.translate([], SEARCHES[0]) == []


@pytest.mark.parametrize("kind", ["greedy", "beam"])
def test_each_hypothesis_is_cut_at_its_own_cap(
    kind: str, endless: Network, assert_same: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, fast = endless
    monkeypatch.setattr("dragoman.translation.ctranslate2.CHUNK", 3)
    search = SearchConfig(kind=kind, max_length_a=0.5, max_length_b=3)
    results = fast.translate(SOURCES, search, scored=False)
    for source, hypotheses in zip(SOURCES, results, strict=True):
        assert len(hypotheses[0].ids) <= search.max_length(len(source))
    if kind == "greedy":
        assert_same(bundle.model, SOURCES, translate_ids(bundle.model, SOURCES, search), results)


def test_positions_end_where_the_model_ends(shaped: Make, engine_of: Make, assert_same: Check, tmp_path: Path) -> None:
    bundle, search = shaped(position=PositionConfig(kind="learned", length=16)), SearchConfig(kind="greedy")
    bundle = dataclasses.replace(bundle, meta={"max_length": 14})
    fast, sources = engine_of(bundle, tmp_path / "b"), [[5] * n for n in (1, 9, 15)]
    assert_same(bundle.model, sources, translate_ids(bundle.model, sources, search), fast.translate(sources, search))
    translator = Translator.load(tmp_path / "b", "cpu")
    assert translator.engine == "ctranslate2"
    assert translator.translate(["好" * 40], search, direction="zh_en")[0].text


def test_an_export_is_used_on_a_cpu(exported: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "get_cuda_device_count", lambda: 0)
    n_threads = torch.get_num_threads()
    fast, slow = Translator.load(exported), Translator.load(exported, "cpu", engine="torch")
    assert (fast.engine, slow.engine) == ("ctranslate2", "torch")
    assert torch.get_num_threads() == n_threads
    for result, expected in zip(fast.translate(LINES), slow.translate(LINES), strict=True):
        assert result.text == expected.text
        assert result.hypotheses[0].score == pytest.approx(expected.hypotheses[0].score, abs=1e-3)
        assert result.hypotheses[0].token_scores == []
    assert fast.embed(LINES).equal(slow.embed(LINES))  # by torch, whichever engine translates
    assert notes() == []
    monkeypatch.setattr(library, "get_cuda_device_count", lambda: 1)
    assert Translator.load(exported).engine == "torch"
    assert Translator.load(exported, "cpu").engine == "ctranslate2"


def test_torch_does_other_searches_with_a_note(exported: Path, notes: Notes) -> None:
    fast, slow = (Translator.load(exported, "cpu", engine=name) for name in ("ctranslate2", "torch"))
    sample = SearchConfig(kind="sample", seed=3, max_length_b=5)
    assert fast.translate(LINES, sample) == slow.translate(LINES, sample)
    assert notes() == ["note: CTranslate2 does not support search.kind=sample; torch is used"]
    with pytest.raises(UserError, match="greedy, beam, sample"):
        fast.translate(LINES, SearchConfig(kind="toy"))
    with pytest.raises(UserError, match=r"search.kind=toy: choose one of greedy, beam"):
        CTranslate2Engine.load(exported, fast.bundle).translate(SOURCES, SearchConfig(kind="toy"))


def retrain(folder: Path) -> None:
    """Write another model into the folder."""
    bundle = bundles.load(folder)
    with torch.no_grad():
        bundle.model.projection.weight[0, 0] += 1
    bundles.save(bundle, folder.parent / "other")
    shutil.copytree(folder.parent / "other", folder, dirs_exist_ok=True)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "sha256": lambda folder: (folder / "ctranslate2" / "model.bin").write_bytes(b"short"),
    "other weights": retrain,
    "another format": lambda folder: edit_manifest(folder, format_version=99),
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_damaged_or_old_export_falls_back_to_torch(reason: str, exported: Path, tmp_path: Path, notes: Notes) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "bundle"))
    DAMAGE[reason](folder)
    assert Translator.load(folder, "cpu").engine == "torch"
    (message,) = notes()
    assert reason in message
    assert message.endswith("; torch is used")
    with pytest.raises(UserError, match=reason):
        Translator.load(folder, engine="ctranslate2")


def test_without_an_export_torch_is_used_silently(golden_folder: Path, notes: Notes) -> None:
    assert Translator.load(golden_folder, "cpu").engine == "torch"
    assert notes() == []
    for name, device, message in (
        ("ctranslate", "cpu", r"auto, torch, ctranslate2 \(did you mean 'ctranslate2'"),
        ("ctranslate2", "cuda", "--device cuda"),
        ("ctranslate2", "cpu", r"scripts/export.py --model .* --to ctranslate2"),
    ):
        with pytest.raises(UserError, match=message):
            Translator.load(golden_folder, device, engine=name)


def test_without_the_library_torch_is_used(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert Translator.load(exported, "cpu").engine == "torch"
    with pytest.raises(ModuleNotFoundError):
        Translator.load(exported, engine="ctranslate2")


def test_an_included_bundle_is_exported_to_the_cache(
    golden_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(golden_folder, tmp_path / "box" / "golden")
    content = sorted((tmp_path / "box").rglob("*"))
    monkeypatch.setattr(files, "included", lambda path: tmp_path / "box")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for first in (True, False):
        assert Translator.load(tmp_path / "box" / "golden").engine == "ctranslate2"
        assert ("first use of" in capsys.readouterr().err) == first
    assert sorted((tmp_path / "box").rglob("*")) == content
    assert len(list((tmp_path / "cache" / "dragoman").glob("golden-*"))) == 1

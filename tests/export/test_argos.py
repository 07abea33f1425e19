"""Packages of Argos Translate, and the CTranslate2 export without Dragoman."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from dragoman import Translator, files
from dragoman.config import SearchConfig
from dragoman.errors import UserError
from dragoman.export import argos
from dragoman.translation import export

pytest.importorskip("ctranslate2")
README = Path(__file__).parents[2] / "scripts" / "README.md"
# Argos Translate loads its splitter of sentences from the network.
CLIENT = """
import json, sys
from argostranslate import package, sbd, translate

sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]
package.install_from_path(sys.argv[1])
(model,) = package.get_installed_packages()
texts = json.load(sys.stdin)
json.dump([translate.translate(text, model.from_code, model.to_code) for text in texts], sys.stdout)
"""


@pytest.fixture
def folder(zh_en: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundle runs/zh_en/bundle in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "SENTENCES", 8)
    return Path(shutil.copytree(zh_en, tmp_path / "runs" / "zh_en" / "bundle"))


def test_a_package_has_what_argos_reads(folder: Path, golden: Path) -> None:
    argos.export_bundle(folder)
    with zipfile.ZipFile(folder / "translate-zh_en-1_0.argosmodel") as archive:
        root = zipfile.Path(archive, "translate-zh_en-1_0/")
        metadata = json.loads((root / "metadata.json").read_text())
        assert (root / "sentencepiece.model").read_bytes() == (folder / "joint.model").read_bytes()
        assert {path.name for path in (root / "model").iterdir()} >= {"model.bin", "config.json"}
    assert (metadata["from_code"], metadata["to_name"]) == ("zh", "English")
    with pytest.raises(UserError, match="two directions"):
        argos.export_bundle(golden)


@pytest.mark.slow
@pytest.mark.skipif("ARGOS_PYTHON" not in os.environ, reason="ARGOS_PYTHON: a Python that has argostranslate")
@pytest.mark.parametrize("included", [False, True])
def test_argos_translates_alike(included: bool, zh_en: Path, pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    folder = shutil.copytree(files.included("data/pretrained/zh_en") if included else zh_en, tmp_path / "bundle")
    argos.export_bundle(folder)
    texts = [zh for zh, _ in pairs]
    command = [os.environ["ARGOS_PYTHON"], "-c", CLIENT, str(next(folder.glob("*.argosmodel")))]
    homes = {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("DATA", "CONFIG", "CACHE")}
    done = subprocess.run(command, input=json.dumps(texts), text=True, capture_output=True, env=os.environ | homes)
    assert done.returncode == 0, done.stderr
    search = SearchConfig(beam_size=4, length_penalty=0.2, max_length_a=0.0, max_length_b=256)
    ours = [line.text for line in Translator.load(folder).translate(texts, search)]
    assert len(texts) == 100
    # Argos Translate writes spaces for underscores.
    assert [text.replace("_", " ").split() for text in ours] == [text.split() for text in json.loads(done.stdout)]


def test_ctranslate2_alone_translates_alike(folder: Path) -> None:
    export.export_bundle(folder)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    code = next(block for block in blocks if "ctranslate2.Translator" in block)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    sources = re.findall(r'"(\S+?[。！？])"', code)
    # The length of the source does not bound these translations.
    ours = Translator.load(folder).translate(sources, SearchConfig(max_length_a=0.0, max_length_b=256))
    assert out.getvalue().splitlines() == [line.text for line in ours]
    assert len(sources) > 1
    assert len(code.splitlines()) <= 10

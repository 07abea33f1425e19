"""An export that is consistent in itself, vouched for by its manifest, and not what its bundle implies."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman import bundle as bundles
from dragoman import untrusted
from dragoman.bundle import Bundle
from dragoman.ctranslate2_engine import FOLDER
from dragoman.errors import UserError
from dragoman.export.ctranslate2 import export
from dragoman.translator import Translator
from tiny import SENTENCES

pytest.importorskip("ctranslate2")
HEADS = "decoder/num_heads"
NORM = "decoder/layer_0/attention/layer_norm/gamma"  # others are aliases of it
BIAS = "decoder/projection/bias"
Variables = dict[str, tuple[list[int], int, bytes]]  # name -> shape, kind, content


@pytest.fixture(scope="module")
def exported(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    bundles.save(tiny_bundle, folder)
    export(folder, SENTENCES)
    return folder


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "bundle"))


def rewrite(folder: Path, change: Callable[[Variables, dict[str, str]], None]) -> None:
    """A model.bin of other variables and aliases."""
    path = folder / FOLDER / "model.bin"
    data, at = path.read_bytes(), 0

    def take(form: str) -> int:
        nonlocal at
        at += struct.calcsize(form)
        return int(struct.unpack(form, data[at - struct.calcsize(form) : at])[0])

    def chunk(size: int) -> bytes:
        nonlocal at
        at += size
        return data[at - size : at]

    def name() -> str:
        return chunk(take("<H")).decode().removesuffix("\0")

    head = take("<I"), name(), take("<I")
    variables: Variables = {}
    for _ in range(take("<I")):
        this, shape = name(), [take("<I") for _ in range(take("<B"))]
        variables[this] = shape, take("<B"), chunk(take("<I"))
    aliases = {name(): name() for _ in range(take("<I"))}
    change(variables, aliases)

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    parts = [struct.pack("<I", head[0]), text(head[1]), struct.pack("<II", head[2], len(variables))]
    for this, (shape, kind, content) in variables.items():
        parts += [text(this), struct.pack(f"<B{len(shape)}I", len(shape), *shape)]
        parts += [struct.pack("<BI", kind, len(content)), content]
    parts += [struct.pack("<I", len(aliases)), *(text(end) for pair in aliases.items() for end in pair)]
    path.write_bytes(b"".join(parts))


def vouch(folder: Path) -> None:
    """The manifest says that the files are as they are now."""
    place = folder / FOLDER
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["files"] = {
        path.name: {"size": path.stat().st_size, "sha256": untrusted.sha256(path)}
        for path in place.iterdir()
        if path.name != "manifest.json"
    }
    (place / "manifest.json").write_text(json.dumps(manifest))


def number(name: str, value: int) -> Callable[[Variables, dict[str, str]], None]:
    return lambda variables, aliases: variables.update({name: ([], 2, struct.pack("<h", value))})


MODELS = {
    "no heads": number(HEADS, 0),
    "fewer heads than none": number(HEADS, -1),
    "a head too many": number("encoder/num_heads", 3),
    "a layer that is not there": number("decoder/alignment_layer", 0x7F7F),
    "a number without a name of ours": number("decoder/surprise", 1),
    "another activation": lambda v, a: v.update({"decoder/activation": ([], 1, b"\7")}),
    "a norm of one number": lambda v, a: v.update({NORM: ([1], 0, bytes(4))}),
    "a norm without numbers": lambda v, a: v.update({NORM: ([0], 0, b"")}),
    "an embedding of two words": lambda v, a: v.update(
        {"decoder/embeddings/weight": ([2, 32], 1, bytes(64))}
    ),
    "a matrix that is a row": lambda v, a: v.update(
        {(name := "encoder/layer_0/ffn/linear_0/weight"): ([v[name][0][0] * v[name][0][1], 1], *v[name][1:])}
    ),
    "scales of a single row": lambda v, a: v.update(
        {"encoder/layer_0/ffn/linear_0/weight_scale": ([1], 0, bytes(4))}
    ),
    "a table of two positions": lambda v, a: v.update(
        {"decoder/position_encodings/encodings": ([2, 32], 0, bytes(256))}
    ),
    "floats instead of int8": lambda v, a: v.update(
        {(name := "encoder/layer_0/ffn/linear_0/weight"): (v[name][0], 0, v[name][2] * 4)}
    ),
    "no bias": lambda v, a: v.pop(BIAS) and None,
    "a second bias": lambda v, a: v.update({BIAS + "2": v[BIAS]}),
    "an alias to nothing": lambda v, a: (v.pop(BIAS), a.update({BIAS: "nothing"}))[1],
    "an alias to itself": lambda v, a: (v.pop(BIAS), a.update({BIAS: BIAS}))[1],
    "an alias of what is there": lambda v, a: a.update({NORM: HEADS}),
}


def write(name: str, content: object) -> Callable[[Path], object]:
    return lambda place: (place / name).write_text(json.dumps(content))


def settings(**others: object) -> Callable[[Path], object]:
    return lambda place: (place / "config.json").write_text(
        json.dumps(json.loads((place / "config.json").read_text()) | others)
    )


def words(change: Callable[[list[str]], list[str]]) -> Callable[[Path], object]:
    def rewritten(place: Path) -> None:
        path = place / "shared_vocabulary.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return rewritten


OTHERS: dict[str, Callable[[Path], object]] = {
    "reversed words": words(lambda pieces: pieces[::-1]),
    "more words": words(lambda pieces: [*pieces, "more"]),
    "other words": words(lambda pieces: [f"{piece}!" for piece in pieces]),
    "words without end": words(lambda pieces: ["x" * 10_000_000, *pieces]),
    "no list of words": write("shared_vocabulary.json", {"a": 1}),
    "words nested deeply": lambda place: (place / "shared_vocabulary.json").write_text("[" * 10_000),
    "another end": settings(eos_token="zzz"),
    "a wrong type": settings(add_source_bos="s"),
    "an odd epsilon": settings(layer_norm_epsilon=-1e30),
    "an unknown setting": settings(surprise=1),
}


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as found:
        Translator.load(folder, engine="ctranslate2")
    assert "\n" not in str(found.value)
    assert Translator.load(folder).engine.name == "torch"
    return str(found.value)


@pytest.mark.parametrize("lie", MODELS)
def test_a_model_that_is_not_its_bundles_never_reaches_the_library(folder: Path, lie: str) -> None:
    rewrite(folder, MODELS[lie])
    vouch(folder)
    assert "is not the model of its bundle" in refused(folder)


@pytest.mark.parametrize("lie", OTHERS)
def test_other_words_and_settings_are_refused(folder: Path, lie: str) -> None:
    OTHERS[lie](folder / FOLDER)
    vouch(folder)
    assert "than an export" in (told := refused(folder)) or "does not list the pieces" in told


def test_a_file_rewritten_as_it_was_is_taken(folder: Path) -> None:
    rewrite(folder, lambda variables, aliases: None)
    vouch(folder)
    assert Translator.load(folder).engine.name == "ctranslate2"


@pytest.mark.parametrize(
    "change", [{"quantization": "int4"}, {"positions": 99}, {"positions": -1}, {"positions": 0}]
)
def test_a_manifest_that_lies_is_refused(folder: Path, change: dict) -> None:
    path = folder / FOLDER / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    refused(folder)


def test_an_export_that_lies_elsewhere_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / FOLDER).rename(tmp_path / "elsewhere")
    (folder / FOLDER).symlink_to(tmp_path / "elsewhere")
    assert "leads out" in refused(folder)

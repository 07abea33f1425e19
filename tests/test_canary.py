"""Files that want to run code or to eat the machine: each is refused in one line, and the canary lives.

Every file is read in a process of its own (hostile.py), with a gigabyte of memory to do it in. How many were tried and
refused is printed at the end (pytest -s).
"""

import gzip
import io
import json
import os
import pickle
import pickletools
import random
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file
from sentencepiece import sentencepiece_model_pb2 as proto

from dragoman import untrusted
from dragoman.config import Config
from dragoman.errors import UserError
from dragoman.experiments import CONFIGS
from dragoman.training.run import plain

ROOT = Path(__file__).parents[1]
REFUSED: list[str] = []  # names of the files refused so far


class Evil:
    """Unpickled, it makes the canary's file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple:
        return os.system, (f"touch '{self.canary}'",)


@pytest.fixture(scope="module")
def reader() -> Iterator[Callable[[str, Path], tuple[int, str]]]:
    """Has a process take a file; how it ended, and what it said."""
    command = [sys.executable, str(ROOT / "tests" / "hostile.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin
        assert process.stdout

        def read(kind: str, path: Path) -> tuple[int, str]:
            print(kind, path, file=process.stdin, flush=True)
            code, told, _ = json.loads(process.stdout.readline())
            return code, told

        yield read
        process.stdin.close()
    print(f"\nhostile files refused / tried: {len(REFUSED)} / {len(FILES)}")


def zipped(content: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return file.getvalue()


def torch_saved(content: object, *, legacy: bool = False) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    return file.getvalue()


def safetensors(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def tensor(begin: int, end: int, shape: list[int] | None = None) -> dict:
    return {"dtype": "F32", "shape": [2] if shape is None else shape, "data_offsets": [begin, end]}


def model(bundle: Path, change: Callable[[proto.ModelProto], object]) -> bytes:
    found = proto.ModelProto()
    found.ParseFromString((bundle / "joint.model").read_bytes())
    change(found)
    return found.SerializeToString()


def bomb(unit: bytes, n_bytes: int) -> bytes:
    """`n_bytes` of the same, packed."""
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) as packed:
        block = unit * ((1 << 20) // len(unit))
        for _ in range(n_bytes // len(block)):
            packed.write(block)
    return file.getvalue()


LAUGHS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(9)
)
BEYOND = 5 << 28  # more bytes than a reader has room for
ONE = b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
DUPLICATE = b"{" + ONE + b"," + ONE + b"}"

# kind, name of the file, its content from the canary's place and a bundle's.
FILES: list[tuple[str, str, Callable[[Path, Path], bytes | str]]] = [
    *(
        (kind, f"evil{suffix}", content)
        for kind, suffixes in {
            "checkpoint": (".ckpt", ".pt", ".zip"),
            "weights": (".safetensors",),
            "vectors": (".vec", ".bin", ".vec.gz"),
            "corpus": (".parquet", ".jsonl", ".tsv.gz"),
            "tokenizer": (".model",),
        }.items()
        for suffix in suffixes
        for content in (
            lambda canary, bundle: pickle.dumps(Evil(canary)),
            lambda canary, bundle: pickle.dumps({"state_dict": Evil(canary)}, protocol=0),
            lambda canary, bundle: torch_saved({"state_dict": Evil(canary)}),
            lambda canary, bundle: torch_saved({"state_dict": Evil(canary)}, legacy=True),
            lambda canary, bundle: zipped({"archive/data.pkl": pickle.dumps(Evil(canary))}),
            lambda canary, bundle: zipped({"../../evil": b"slip", "archive/data.pkl": pickle.dumps(Evil(canary))}),
        )
    ),
    ("checkpoint", "bytes.ckpt", lambda c, b: zipped(
        {"a/data.pkl": b"\x80\x02cbuiltins\nbytearray\nJ\0\0\0\x7f\x85R."})),
    ("checkpoint", "packed.ckpt", lambda c, b: zipped(
        {"a/data.pkl": pickle.dumps({}), "a/data/0": bytes(1 << 26)}, zipfile.ZIP_DEFLATED)),
    ("checkpoint", "empty.ckpt", lambda c, b: b""),
    ("weights", "empty.safetensors", lambda c, b: b""),
    ("weights", "short.safetensors", lambda c, b: b"\x08\0\0"),
    ("weights", "giant.safetensors", lambda c, b: struct.pack("<Q", 2**62) + b"{}"),
    ("weights", "header.safetensors", lambda c, b: safetensors(
        {"__metadata__": {"x": "y" * 9_000_000}, "a": tensor(0, 8)}, bytes(8))),
    ("weights", "many.safetensors", lambda c, b: safetensors(
        {f"{i}": tensor(8 * i, 8 * i + 8) for i in range(70_000)}, bytes(560_000))),
    ("weights", "overlap.safetensors", lambda c, b: safetensors({"a": tensor(0, 8), "b": tensor(4, 12)}, bytes(12))),
    ("weights", "beyond.safetensors", lambda c, b: safetensors({"a": tensor(0, 8)}, bytes(4))),
    ("weights", "negative.safetensors", lambda c, b: safetensors({"a": tensor(-8, 0)}, bytes(8))),
    ("weights", "huge.safetensors", lambda c, b: safetensors({"a": tensor(0, 2**63, [2**61])}, bytes(8))),
    ("weights", "gap.safetensors", lambda c, b: safetensors({"a": tensor(8, 16)}, bytes(16))),
    ("weights", "trailing.safetensors", lambda c, b: safetensors({"a": tensor(0, 8)}, bytes(1000))),
    ("weights", "twice.safetensors", lambda c, b: safetensors(DUPLICATE, bytes(8))),
    ("weights", "place.safetensors", lambda c, b: safetensors({"a": tensor(0, 8) | {"data_offsets": "x"}}, bytes(8))),
    ("weights", "deep.safetensors", lambda c, b: safetensors(b"[" * 1_000_000)),
    ("weights", "list.safetensors", lambda c, b: safetensors([1, 2])),
    ("weights", "texts.safetensors", lambda c, b: safetensors({"a": "F32"})),
    ("tokenizer", "random.model", lambda c, b: np.random.default_rng(1).bytes(100_000)),
    ("tokenizer", "empty.model", lambda c, b: b""),
    ("tokenizer", "nothing.model", lambda c, b: b"\x0a\0" * 1_000_000),
    ("tokenizer", "large.model", lambda c, b: bytes(1 << 25)),
    ("tokenizer", "claims.model", lambda c, b: b"\x0a\xff\xff\xff\xff\x07" + bytes(100)),
    ("tokenizer", "nul.model", lambda c, b: model(b, lambda m: setattr(m.pieces[300], "piece", "\0x"))),
    ("tokenizer", "blank.model", lambda c, b: model(b, lambda m: setattr(m.pieces[300], "piece", ""))),
    ("tokenizer", "twin.model", lambda c, b: model(b, lambda m: setattr(m.pieces[300], "piece", m.pieces[301].piece))),
    ("tokenizer", "nan.model", lambda c, b: model(b, lambda m: setattr(m.pieces[300], "score", float("nan")))),
    ("tokenizer", "defined.model", lambda c, b: model(b, lambda m: setattr(m.pieces[300], "type", 4))),
    ("tokenizer", "normal.model", lambda c, b: model(
        b, lambda m: setattr(m.normalizer_spec, "precompiled_charsmap", b"\xff" * 64))),
    ("tokenizer", "denormal.model", lambda c, b: model(
        b, lambda m: setattr(m.denormalizer_spec, "precompiled_charsmap", b"\xff" * 64))),
    ("tokenizer", "unk.model", lambda c, b: model(b, lambda m: setattr(m.pieces[1], "type", 1))),
    ("vectors", "endless.vec.gz", lambda c, b: bomb(b"a", BEYOND)),
    ("vectors", "wide.vec", lambda c, b: "1 99999999999\nx 1 2 3\n"),
    ("corpus", "noise.parquet", lambda c, b: b"PAR1" + np.random.default_rng(1).bytes(10_000) + b"PAR1"),
    ("corpus", "deep.jsonl", lambda c, b: "[" * 100_000),
    ("corpus", "bomb.parquet.gz", lambda c, b: bomb(b"PAR1", BEYOND)),
    ("run", "config.yaml", lambda c, b: LAUGHS),
    ("run", "config.yaml", lambda c, b: f"name: !!python/object/apply:os.system [touch {c}]\n"),
    ("run", "config.yaml", lambda c, b: f"name: !!python/object/new:subprocess.Popen [[touch, {c}]]\n"),
    ("run", "config.yaml", lambda c, b: "[" * 20_000),
    ("run", "metrics.json", lambda c, b: '{"step": "many", "finished": "max_steps"}'),
    ("run", "metrics.json", lambda c, b: '["a list"]'),
    ("run", "metrics.json", lambda c, b: "[" * 1_000_000),
    ("run", "metrics.json", lambda c, b: '{"notes": "' + "x" * (1 << 23) + '"}'),
    ("run", "metrics.json", lambda c, b: pickle.dumps(Evil(c))),
    *(
        ("experiment", "evil.yaml", content)
        for content in (
            lambda c, b: f"# @package _global_\nmodel: {{_target_: os.system, command: touch {c}}}\n",
            lambda c, b: f"# @package _global_\n_target_: os.system\n_args_: [touch {c}]\n",
            lambda c, b: f"# @package _global_\nname: !!python/object/apply:os.system [touch {c}]\n",
            lambda c, b: f"# @package _global_\nhydra: {{callbacks: {{x: {{_target_: os.mkdir, path: {c}}}}}}}\n",
            lambda c, b: f"# @package _global_\nhydra: {{launcher: {{_target_: os.mkdir, path: {c}}}}}\n",
            lambda c, b: f"# @package _global_\nhydra: {{run: {{dir: {c}}}}}\n",
            lambda c, b: "# @package _global_\ndata: {src: '${oc.env:HOME}'}\n",
            lambda c, b: "# @package _global_\ndata: {src: '${evil:1}'}\n",
            lambda c, b: "# @package _global_\ndata: {src: '${oc.decode:${name}}'}\n",
            lambda c, b: "# @package _global_\n" + LAUGHS,
            lambda c, b: "# @package _global_\n" + "[" * 20_000,
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FILES)), ids=lambda n: f"{n}-{FILES[n][0]}-{FILES[n][1]}")
def test_the_canary_lives_and_the_file_is_refused_in_one_line(
    number: int, reader: Callable, tmp_path: Path, tiny_bundle_folder: Path
) -> None:
    kind, name, content_of = FILES[number]
    canary = tmp_path / "canary"
    content = content_of(canary, tiny_bundle_folder)
    path = tmp_path / name
    if kind == "run":
        path = tmp_path / "run" / name
        path.parent.mkdir()
        (path.parent / "config.yaml").write_text(yaml.safe_dump(plain(Config())))
    if kind == "experiment":
        path = Path(shutil.copytree(CONFIGS, tmp_path / "configs")) / "experiment" / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    code, told = reader(kind, path.parent if kind == "run" else path)
    assert not canary.exists()
    assert code == 2, told
    assert "\n" not in told.strip()
    assert len(told) < 1000
    REFUSED.append(name)


@pytest.mark.parametrize("legacy", [False, True])
def test_the_canary_lives_even_where_nobody_looked_through_the_archive(
    legacy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two things guard it. The other tests meet the first one alone, so here it lets everything pass."""
    canary = tmp_path / "canary"
    (tmp_path / "evil.ckpt").write_bytes(torch_saved({"state_dict": Evil(canary)}, legacy=legacy))
    monkeypatch.setattr(untrusted, "check_archive", lambda path: None)
    with pytest.raises(UserError, match="not a checkpoint of training: Weights only load failed"):
        untrusted.read_archive(tmp_path / "evil.ckpt")
    assert not canary.exists()


NAMES_SOMETHING = {
    "GLOBAL": (b"cposix\nsystem\n.", "'posix system'"),
    "GLOBAL, nearly one of ours": (b"ctorch._utils\n_rebuild_tensor_v2.__globals__.get\n.", "'torch._utils _reb"),
    "INST": (b"(S'true'\niposix\nsystem\n.", "'posix system'"),
    "STACK_GLOBAL": (pickle.dumps(os.system), "'None'"),
    "EXT1": (b"\x82\x01.", "'1'"),
    "EXT2": (b"\x83\x01\x01.", "'257'"),
    "EXT4": (b"\x84\x01\0\0\1.", "'16777217'"),
}  # fmt: skip


@pytest.mark.parametrize("code", NAMES_SOMETHING)
def test_an_archive_that_names_what_could_be_called_is_refused_before_torch_sees_it(
    code: str, tmp_path: Path
) -> None:
    """The first of the two guards, alone: torch has let things pass that it should not have."""
    pickled, name = NAMES_SOMETHING[code]
    assert {found.name for found, *_ in pickletools.genops(pickled)} & {code.split(",")[0]}
    (tmp_path / "evil.ckpt").write_bytes(zipped({"archive/data.pkl": pickled}))
    with pytest.raises(UserError, match=f"it asks for {re.escape(name)}"):
        untrusted.check_archive(tmp_path / "evil.ckpt")


def test_the_canary_would_die_if_anything_were_unpickled(tmp_path: Path) -> None:
    """Or the other tests would prove nothing."""
    pickle.loads(pickle.dumps(Evil(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()


def test_a_pickle_called_tsv_is_at_most_a_line_of_text(reader: Callable, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for content in (pickle.dumps(Evil(canary)), pickle.dumps(Evil(canary), 0), torch_saved(Evil(canary))):
        (tmp_path / "evil.tsv").write_bytes(content)
        code, told = reader("corpus", tmp_path / "evil.tsv")
        assert code in (0, 2), told
        assert "\n" not in told.strip()
        assert not canary.exists()


def test_what_is_honest_is_taken(tmp_path: Path, tiny_bundle_folder: Path) -> None:
    torch.save({"state_dict": {"model.a": torch.ones(2)}}, tmp_path / "honest.ckpt")
    untrusted.check_archive(tmp_path / "honest.ckpt")
    save_file({"a": torch.tensor([1.0, 2.0])}, tmp_path / "honest.safetensors")
    assert untrusted.read_weights(tmp_path / "honest.safetensors", {"a": [2]})["a"].tolist() == [1.0, 2.0]


@pytest.mark.slow
def test_packed_endless_lines_take_time_and_no_memory(reader: Callable, tmp_path: Path) -> None:
    """Honest files, as far as anybody can tell: long sentences, to be dropped, packed as text is and not as a bomb."""
    word = random.Random(1).randbytes(10_000).hex().encode()  # all that a packer looks back to
    (tmp_path / "long.tsv.gz").write_bytes(bomb(word * 25 + b"\t" + word * 25 + b"\n", 3 << 29))
    assert reader("corpus", tmp_path / "long.tsv.gz") == (0, "")

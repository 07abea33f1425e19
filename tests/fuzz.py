"""Damaging small real files at random and feeding them to everything that reads a file somebody else made.

Knows: a good file of every kind, ways to damage bytes, and the doors that take them: `sources.find` for corpora,
`vectors.read`, `bundle.load`, `Tokenizer.load`, and what reads experiments and checkpoints. A reader may take a damaged
file or refuse it with a UserError of one line; whatever else comes out of it is a crash, and its input is kept.
In a bundle the manifest is written anew for the damaged file, or its hash would stop every one at the door.
"""

import bz2
import gzip
import hashlib
import importlib.util
import io
import json
import lzma
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
import zstandard

from dragoman import bundle, ctranslate2_engine, description, untrusted, vectors
from dragoman.data import sources
from dragoman.data.corpus import CorpusConfig, clean_text
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.export.ctranslate2 import export
from dragoman.training import run

ROWS = [
    ("好久不见。", "Long time no see."),
    ("我爱你", "I love you"),
    ("", "x"),
    ("𠮷\u2028家", "a\tb"),
    ("书", "e\u0301"),
]
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
SALT = [
    *(bytes([byte]) for byte in b"\x00\x01\x7f\x80\xff\n\r\t \"'{}[]:,.-<&"),
    *(b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", "\u2028\u202e\u200b▁".encode(), b"${x}", b"!!python/object:a"),
    *(b"-1", b"0", b"1e999", b"NaN", b"Infinity", b"null", b"true", b'""', b"9" * 30, b"[" * 3000, b'{"a":' * 1500),
    *((2**power).to_bytes(size, order) for power, size in ((31, 4), (62, 8)) for order in ("little", "big")),
]  # fmt: skip

_PATIENCE = 30  # seconds


@dataclass
class Target:
    """A good file and the reader of its kind, which is given a path of that name holding a damaged one."""

    name: str
    good: bytes
    read: Callable[[Path], object]
    pack: Callable[[bytes], bytes] = bytes


@dataclass
class Found:
    """What came of it. `crashes` are the inputs: (name of the target, bytes, what came out instead of a UserError)."""

    executions: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    crashes: list[tuple[str, bytes, str]] = field(default_factory=list)


def fuzz(targets: list[Target], folder: Path, *, seed: int, rounds: int, minutes: float = 0.0) -> Found:
    """Feed each target `rounds` damaged files, and more until so many minutes are over."""
    found, chance, end = Found(), random.Random(seed), time.monotonic() + 60 * minutes
    done = 0
    while done < rounds or time.monotonic() < end:
        done += 1
        for target in targets:
            broken = damaged(target, chance)
            told = feed(target, broken, folder)
            found.executions[target.name] += 1
            found.refused[target.name] += told == "refused"
            if told not in ("refused", "read"):
                found.crashes.append((target.name, broken, told))
    return found


def feed(target: Target, content: bytes, folder: Path) -> str:
    """'read', 'refused', or what else happened. The file stays until the next one: a process that dies leaves it."""
    path = folder / target.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(_PATIENCE)
    try:
        target.read(path)
    except _HangsError:
        return f"nothing after {_PATIENCE} s"
    except UserError as error:
        return "refused" if str(error) and "\n" not in str(error) else f"not one line: {str(error)!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return "read"


class _HangsError(BaseException):  # no reader takes it for what a file can be wrong with
    """A reader did not come to an end."""


def _give_up(*_: object) -> NoReturn:
    raise _HangsError


def damaged(target: Target, chance: random.Random) -> bytes:
    """The good file after one to five accidents, before or after it was packed."""
    content, packed = target.good, target.pack is bytes
    for _ in range(chance.randint(1, 5)):
        if not packed and chance.random() < 0.3:
            content, packed = target.pack(content), True
        content = _accident(content, chance)
    return content if packed else target.pack(content)


def _accident(content: bytes, chance: random.Random) -> bytes:
    at = chance.randint(0, len(content))
    to = min(len(content), at + int(chance.paretovariate(0.7)))
    match chance.randrange(7):
        case 0 if at < len(content):  # one bit
            return content[:at] + bytes([content[at] ^ (1 << chance.randrange(8))]) + content[at + 1 :]
        case 1:
            return content[:at] + chance.choice(SALT) + content[to:]  # in place of something
        case 2:
            return content[:at] + chance.choice(SALT) + content[at:]
        case 3:
            return content[:at] + content[to:]
        case 4:
            return content[:to] + content[at:]  # twice
        case 5 if chance.random() < 0.3:
            return content[:at]  # cut off
        case _:
            other = chance.randint(0, len(content))
            return (
                content[:at] + content[other : other + to - at] + content[to:]
            )  # from elsewhere in the file


def every_target(good: bundle.Bundle, home: Path) -> list[Target]:
    """All kinds of files; `good` is saved under `home`."""
    bundles = parts_of_a_bundle(good, home)
    return [*corpora(), *word_vectors(), *bundles, *parts_of_an_export(home), *files_of_a_run(good)]


def corpora() -> list[Target]:
    tsv = "zh\ten\n" + "".join(f"{src}\t{tgt}\n" for src, tgt in ROWS)
    jsonl = "".join(
        json.dumps({"translation": {"zh": src, "en": tgt}, "references": [tgt]}, ensure_ascii=False) + "\n"
        for src, tgt in ROWS
    )
    text = "".join(src + "\n" for src, _ in ROWS)
    columns = list(zip(*ROWS, strict=True))
    parquet = io.BytesIO()
    pq.write_table(
        pa.table({"zh": columns[0], "en": columns[1], "references": [[x] for x in columns[1]]}), parquet
    )
    nested = io.BytesIO()
    pq.write_table(pa.table({"translation": [{"zh": src, "en": tgt} for src, tgt in ROWS]}), nested)
    return [
        *(Target(f"a.tsv{end}", tsv.encode(), _corpus, PACK[end]) for end in ("", ".gz", ".zst")),
        *(Target(f"a.jsonl{end}", jsonl.encode(), _corpus, PACK[end]) for end in ("", ".gz", ".zst")),
        *(Target(f"a.parquet{end}", parquet.getvalue(), _corpus, PACK[end]) for end in ("", ".gz")),
        Target("nested.parquet", nested.getvalue(), _corpus),
        *(Target(f"a.txt{end}", text.encode(), _aligned, PACK[end]) for end in PACK),
        Target("a.jsonl.bz2", jsonl.encode(), _corpus, PACK[".bz2"]),
    ]


def _corpus(path: Path) -> None:
    _drain(CorpusConfig(path=str(path)))


def _aligned(path: Path) -> None:
    other = path.with_name("other.txt")
    other.write_text("x\n" * len(ROWS), encoding="utf-8")
    _drain(CorpusConfig(src_path=str(path), tgt_path=str(other)))


def _drain(config: CorpusConfig) -> None:
    for split in sources.find(config, "zh", "en", None).open().values():
        for rows in split.chunks:
            assert len(rows.src) == len(rows.tgt)
            for text in (*rows.src, *rows.tgt):
                clean_text(text).encode()


def word_vectors() -> list[Target]:
    glove = b"the 0.1 -0.2 3e-1\n. . 1 2 3\n\xe5\xa5\xbd 0 0 1\n"
    return [
        Target("glove.txt", glove, vectors.read),
        Target("word2vec.vec", b"3 3\n" + glove.replace(b". . ", b". "), vectors.read),
        Target("word2vec.vec.gz", b"3 3\n" + glove, vectors.read, gzip.compress),
    ]


def parts_of_a_bundle(good: bundle.Bundle, home: Path) -> list[Target]:
    bundle.save(good, home / "good")

    def load(path: Path) -> None:
        folder = home / "damaged"
        shutil.copytree(home / "good", folder, dirs_exist_ok=True)
        shutil.copy(path, folder / path.name)
        if path.name != "manifest.json":
            manifest = json.loads((folder / "manifest.json").read_bytes())
            content = path.read_bytes()
            manifest["files"][path.name] = {
                "size": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
            (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        loaded = bundle.load(folder)
        for tokenizer in {loaded.src_tokenizer, loaded.tgt_tokenizer}:
            tokenizer.decode(tokenizer.encode("好久不见 see x 𠮷"))

    names = ("config.json", "manifest.json", "model.safetensors", "joint.model")
    return [Target(name, (home / "good" / name).read_bytes(), load) for name in names]


def parts_of_an_export(home: Path) -> list[Target]:
    """Of the bundle that was saved under `home`, with which they are compared."""
    if importlib.util.find_spec("ctranslate2") is None:
        return []
    made = export(home / "good", quantization="int8")
    shell = description.load_shell(home / "good")
    positions = untrusted.read_json(made, "manifest.json")["positions"]

    def check(path: Path) -> None:
        folder = home / "export"
        shutil.copytree(made, folder, dirs_exist_ok=True)
        shutil.copy(path, folder / path.name)
        ctranslate2_engine.check(folder, shell, positions, "int8")

    names = ("model.bin", "shared_vocabulary.json", "config.json")
    return [Target(f"export/{name}", (made / name).read_bytes(), check) for name in names]


def files_of_a_run(good: bundle.Bundle) -> list[Target]:
    def read_tokenizer(path: Path) -> None:
        tokenizer = Tokenizer.load(path)
        tokenizer.decode(tokenizer.encode("好久不见 see x 𠮷"))
        tokenizer.sample("好久不见", alpha=0.1, seed=1)

    checkpoint = io.BytesIO()
    torch.save({"state_dict": {"a": torch.ones(3)}, "epoch": 1, "loops": {"b": [None, 1.5, "c"]}}, checkpoint)

    def read_checkpoint(path: Path) -> None:
        untrusted.read_archive(path)

    metrics = {"run": "5f0c", "step": 5, "seconds": 1.5, "data": "a3", "average": None, "best": {"loss": 2.0}}
    settings = yaml.safe_dump(
        {"data": {"src": "zh", "max_tokens": 4096}, "model": {"dropout": 0.1}, "a": [1, None]}
    )
    return [
        Target("src.model", Path(good.src_tokenizer.path).read_bytes(), read_tokenizer),
        Target("last.ckpt", checkpoint.getvalue(), read_checkpoint),
        Target("experiment.yaml", settings.encode(), untrusted.read_yaml),
        Target("run/config.yaml", settings.encode(), run._read),
        Target("run/metrics.json", json.dumps(metrics).encode(), run._metrics),
    ]


def kept(folder: Path, targets: list[Target]) -> Iterator[tuple[Target, Path]]:
    """The inputs that once crashed a reader: folder/NAME OF THE TARGET/NUMBER."""
    for target in targets:
        yield from ((target, path) for path in sorted((folder / target.name).glob("*")))

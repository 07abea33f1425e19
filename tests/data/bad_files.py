"""Corpora that are bad throughout, for test_bad_corpora.py: each writes one into a folder and names it."""

import bz2
import gzip
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import zstandard

from corpora import PAIRS, translation, write_folder
from dragoman.data.corpus import CorpusConfig

GOOD = PAIRS[:200]
LINE = 120  # where the bad pair stands


def whole(content: bytes) -> Callable[[Path], CorpusConfig]:
    def write(folder: Path) -> CorpusConfig:
        (folder / "a.tsv").write_bytes(content)
        return CorpusConfig(path=str(folder / "a.tsv"))

    return write


def packed_empty(folder: Path) -> CorpusConfig:
    return CorpusConfig(path=str(write_folder(folder / "empty", {"train": []})))


def of_aligned(content: str) -> Callable[[Path], CorpusConfig]:
    def write(folder: Path) -> CorpusConfig:
        for name in ("a.zh", "a.en"):
            (folder / name).write_text(content)
        return CorpusConfig(src_path=str(folder / "a.zh"), tgt_path=str(folder / "a.en"))

    return write


def jsonl(row: str, name: str = "a.jsonl") -> Callable[[Path], CorpusConfig]:
    """JSONL with one row among good ones."""

    def write(folder: Path) -> CorpusConfig:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        rows = [json.dumps(dict(zip(("zh", "en"), pair, strict=True)), ensure_ascii=False) for pair in GOOD]
        rows.insert(LINE, row)
        path.write_text("\n".join(rows), encoding="utf-8")
        return CorpusConfig(path=str(path if path.parent == folder else path.parent))

    return write


def symlink_loop(folder: Path) -> CorpusConfig:
    (folder / "loop.tsv").symlink_to(folder / "loop.tsv")
    return CorpusConfig(path=str(folder / "loop.tsv"))


def gz_bomb(folder: Path) -> CorpusConfig:
    with gzip.open(folder / "a.tsv.gz", "wb") as file:
        for _ in range(20):
            file.write(bytes(2**20))
    return CorpusConfig(path=str(folder / "a.tsv.gz"))


def zst_bomb(folder: Path) -> CorpusConfig:
    (folder / "a.tsv.zst").write_bytes(zstandard.ZstdCompressor().compress(b"\t\n" * 2**23))
    return CorpusConfig(path=str(folder / "a.tsv.zst"))


def gz_bomb_in_a_folder(folder: Path) -> CorpusConfig:
    (folder / "corpus").mkdir()
    with gzip.open(folder / "corpus" / "train.jsonl.gz", "wb") as file:
        for _ in range(20):
            file.write(b"\n" * 2**20)
    return CorpusConfig(path=str(folder / "corpus"))


def bz2_bomb_in_a_folder(folder: Path) -> CorpusConfig:
    (folder / "corpus").mkdir()
    (folder / "corpus" / "train.jsonl.bz2").write_bytes(bz2.compress(b"\n" * (20 * 2**20)))
    return CorpusConfig(path=str(folder / "corpus"))


def zip_bomb(folder: Path) -> CorpusConfig:
    (folder / "corpus").mkdir()
    with zipfile.ZipFile(folder / "corpus" / "train.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("train.jsonl", b"\n" * (20 * 2**20))
    return CorpusConfig(path=str(folder / "corpus"))


def pipe(folder: Path) -> CorpusConfig:
    os.mkfifo(folder / "x.tsv")
    return CorpusConfig(path=str(folder / "x.tsv"))


def device(folder: Path) -> CorpusConfig:
    (folder / "x.tsv").symlink_to("/dev/zero")
    return CorpusConfig(path=str(folder / "x.tsv"))


def of_a_folder(data_files: str, link: bool = False) -> Callable[[Path], CorpusConfig]:
    """A folder whose README names other files, or with a link to one."""

    def write(folder: Path) -> CorpusConfig:
        corpus = write_folder(folder / "corpus", {"train": [translation(*pair) for pair in GOOD]})
        (corpus / ".hidden.jsonl").write_text("")
        (folder / "outside.jsonl").write_text("")
        if link:
            (corpus / data_files).symlink_to(folder / "outside.jsonl")
        else:
            configs = f"configs:\n- config_name: default\n  data_files: {data_files}\n"
            (corpus / "README.md").write_text(f"---\n{configs}---\n")
        return CorpusConfig(path=str(corpus))

    return write

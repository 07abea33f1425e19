"""A digest is remembered while its file stays what it was, and never beyond."""

import os
from pathlib import Path

import pytest

from dragoman.data import digests
from dragoman.data.digests import Digests, digest_of


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read; all count as written long ago."""
    files: list[Path] = []
    monkeypatch.setattr(digests, "SETTLED", -1.0)
    monkeypatch.setattr(digests, "digest_of", lambda path: files.append(path) or digest_of(path))
    return files


def start(memory: Path, *files: Path) -> list[str]:
    """What a start of the program learns of these files."""
    known = Digests(memory)
    found = [known.of(file) for file in files]
    known.keep()
    return found


def test_a_file_is_read_once_however_often_it_is_asked_for(tmp_path: Path, read: list[Path]) -> None:
    file, memory = tmp_path / "a", tmp_path / "cache" / "digests.json"
    file.write_text("one")
    assert start(memory, file) == start(memory, file) == start(memory, file) == [digest_of(file)]
    assert read == [file]


def test_other_content_is_seen_though_size_and_date_are_put_back(tmp_path: Path, read: list[Path]) -> None:
    file, memory = tmp_path / "a", tmp_path / "digests.json"
    file.write_text("one")
    before = file.stat()
    start(memory, file)
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # clocks of file systems tick slowly
        file.write_text("two")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert start(memory, file) == [digest_of(file)]


def test_another_file_under_the_same_name_is_read(tmp_path: Path, read: list[Path]) -> None:
    file, memory = tmp_path / "a", tmp_path / "digests.json"
    file.write_text("one")
    start(memory, file)
    (tmp_path / "b").write_text("two")
    os.replace(tmp_path / "b", file)
    assert start(memory, file) == [digest_of(file)]
    assert len(read) == 2


def test_a_file_that_changed_a_moment_ago_is_not_remembered(tmp_path: Path) -> None:
    file, memory = tmp_path / "a", tmp_path / "digests.json"
    file.write_text("one")
    start(memory, file)
    assert not memory.exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"PATH": 3}', '{"PATH": "nonsense"}', "\x00\xff"])
def test_a_damaged_memory_is_no_memory(tmp_path: Path, read: list[Path], content: str) -> None:
    file, memory = tmp_path / "a", tmp_path / "digests.json"
    file.write_text("one")
    memory.write_bytes(content.replace("PATH", str(file.resolve())).encode("latin-1"))
    assert start(memory, file) == [digest_of(file)]


def test_where_nothing_can_be_written_nothing_is_lost(tmp_path: Path, read: list[Path]) -> None:
    file = tmp_path / "a"
    file.write_text("one")
    assert start(file / "digests.json", file) == [digest_of(file)]

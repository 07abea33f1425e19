"""Preparation in chunks: their size changes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.data import prepare, readers


@pytest.mark.slow
@pytest.mark.parametrize("script", ["keep", "both"])
def test_the_size_of_chunks_changes_no_byte(
    small: Callable, write: Callable, pairs: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    if script == "both":
        pytest.importorskip("opencc")
    corpus, contents = write("a.tsv", [("", "empty"), *pairs, *pairs[::3], ("no Han", "here")]), []
    for size in (10_000, 50):
        monkeypatch.setattr(readers, "CHUNK", size)
        monkeypatch.setattr(prepare, "_CHUNK", size)
        cache = tmp_path / f"cache{size}"
        small(corpus, cache=str(cache), script=script)
        contents.append({file.relative_to(cache): file.read_bytes() for file in cache.rglob("*") if file.is_file()})
    assert contents[0] == contents[1]

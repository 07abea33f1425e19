"""Preparation by processes: equal folders, results in order, no process left over."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.data import prepare, readers

# Prints a line when the processes work, and goes on for ever.
ENDLESS = """from itertools import count
from dragoman.data.prepare import in_order
for number in in_order(abs, count(), 2):
    if number == 20: print("started", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", ["keep", "both"])
def test_the_number_of_workers_changes_no_byte(
    small: Callable, write: Callable, pairs: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    for module, name, value in ((prepare, "ALONE", 1), (readers, "CHUNK", 50), (prepare, "_CHUNK", 50)):
        monkeypatch.setattr(module, name, value)
    corpus, contents = write("a.tsv", [("", "empty"), *pairs, *pairs[::3], ("no Han", "here")]), []
    for workers in (1, 2):
        cache = tmp_path / f"cache{workers}"
        small(corpus, cache=str(cache), workers=workers, script=script)
        contents.append({file.relative_to(cache): file.read_bytes() for file in cache.rglob("*") if file.is_file()})
    assert contents[0] == contents[1]


@pytest.mark.slow
def test_results_are_in_order_and_few_chunks_wait() -> None:
    chunks, n = itertools.count(), prepare.ALONE + 20
    assert list(itertools.islice(prepare.in_order(str, chunks, 2), n)) == list(map(str, range(n)))
    assert next(chunks) <= n + 4


@pytest.mark.slow
def test_processes_end_with_a_killed_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"started\n"
        parent.kill()
        # Ends when no process has the pipe open.
        parent.communicate(timeout=30)

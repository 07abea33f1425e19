"""Rows on disk: what was written is read, by any process, and nothing half written is ever seen."""

import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.store import PairTable, Ragged, RaggedWriter, Texts, built


def write(stem: Path, texts: list[str]) -> None:
    with RaggedWriter(stem, "uint8") as writer:
        for start in range(0, len(texts), 3):
            writer.append_texts([text.encode() for text in texts[start : start + 3]])


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)))))
def test_sentences_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    stem = tmp_path_factory.mktemp("texts") / "some.src"
    write(stem, texts)
    stored = Texts(stem)
    assert [stored[i] for i in range(len(stored))] == texts
    assert stored.chunk(0, len(texts)) == texts


def test_rows_of_ids_keep_their_values_and_lengths(tmp_path: Path) -> None:
    rows = [np.array([5, 65_535]), np.array([], int), np.array([7])]
    with RaggedWriter(tmp_path / "ids", "uint16") as writer:
        writer.append(np.concatenate(rows), np.array([2, 0, 1]))
    stored = Ragged(tmp_path / "ids", "uint16")
    assert [stored[i].tolist() for i in range(3)] == [row.tolist() for row in rows]
    assert stored.lengths().tolist() == [2, 0, 1]


def test_a_stored_table_is_pickled_by_name(tmp_path: Path) -> None:
    write(tmp_path / "big", ["x" * 1000] * 100)
    stored = Texts(tmp_path / "big")
    assert len(pickle.dumps(stored)) < 1000
    assert pickle.loads(pickle.dumps(stored))[99] == stored[99]


def test_a_table_of_pairs_is_a_sequence(tmp_path: Path) -> None:
    for side, texts in (("src", ["甲", "乙"]), ("tgt", ["a", "b"]), ("references", ["a\nA", "b"])):
        write(tmp_path / f"test.{side}", texts)
    table = PairTable(tmp_path / "test")
    assert list(table) == [("甲", "a", ("a", "A")), ("乙", "b", ("b",))]
    assert table[-1].src == "乙"
    assert table[:1] == [table[0]]
    with pytest.raises(IndexError):
        table[2]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), built(tmp_path / "cache" / "texts") as folder:  # noqa: PT012
        (folder / "half").touch()
        raise RuntimeError
    assert list((tmp_path / "cache").iterdir()) == []
    with built(tmp_path / "cache" / "texts") as folder:
        (folder / "whole").touch()
        assert not (tmp_path / "cache" / "texts").exists()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["texts"]


def _build(folder: Path, name: str, gate: object) -> None:
    with built(folder) as unfinished:
        (unfinished / "who").write_text(name)
        gate.wait()  # type: ignore[attr-defined]


def test_two_processes_may_build_the_same_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(2)
    both = [context.Process(target=_build, args=(tmp_path / "texts", name, gate)) for name in "ab"]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert (tmp_path / "texts" / "who").read_text() in "ab"
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]

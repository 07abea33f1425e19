"""Rows on disk: what was written is read, by any process, and nothing half written is ever seen."""

import multiprocessing
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.store import PairTable, Ragged, RaggedWriter, Texts, once, one_at_a_time
from dragoman.errors import UserError


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
    folder = tmp_path / "cache" / "texts"

    def fail(unfinished: Path) -> None:
        (unfinished / "half").touch()
        raise RuntimeError

    def succeed(unfinished: Path) -> None:
        assert not folder.exists()
        (unfinished / "whole").touch()

    with pytest.raises(RuntimeError):
        once(folder, fail)
    (tmp_path / "cache" / ".texts.new").mkdir()  # as by a process that was killed
    assert visible(tmp_path / "cache") == [".texts.new"]
    assert not once(folder, succeed)
    assert visible(tmp_path / "cache") == ["texts"]
    assert once(folder, fail)  # it is there: nothing is done


def test_a_disk_that_refuses_is_told_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"cannot write .*cache.*data\.cache"):
        once(tmp_path / "cache" / "texts", lambda unfinished: None)


def _fill(folder: Path, name: str, log: Path) -> None:
    def fill(unfinished: Path) -> None:
        with log.open("a") as file:
            file.write(name)
        time.sleep(0.2)

    once(folder, fill)


def test_of_two_processes_that_want_the_same_folder_one_works(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    log = tmp_path / "log"
    both = [context.Process(target=_fill, args=(tmp_path / "cache" / "texts", name, log)) for name in "ab"]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert len(log.read_text()) == 1


def visible(folder: Path) -> list[str]:
    """What lies in a folder, but for locks."""
    return [path.name for path in folder.iterdir() if path.suffix != ".lock"]


def test_what_killed_writers_left_beside_it_is_removed_and_what_others_write_now_is_not(
    tmp_path: Path,
) -> None:
    for name in (".ids-1.new", ".ids-2.new", "texts-3"):
        (tmp_path / name).mkdir()
    with one_at_a_time(tmp_path / "ids-2"):
        assert not once(tmp_path / "ids-4", lambda folder: None)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        ".ids-2.new",
        "ids-4",
        "texts-3",
    ]

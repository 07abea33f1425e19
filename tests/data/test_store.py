"""Memory-mapped rows."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from dragoman.data.store import Ragged, ragged_writer

ROWS = [[1, 2, 3], [], [40_000], [7, 8]]


@pytest.fixture
def ragged(tmp_path: Path) -> Ragged:
    with ragged_writer(tmp_path / "ids") as append:
        for part in (ROWS[:2], ROWS[2:]):
            append(np.concatenate(part).astype(np.uint16), list(map(len, part)))
    return Ragged(tmp_path / "ids")


def test_rows_are_read_as_written(ragged: Ragged) -> None:
    assert [ragged[i].tolist() for i in range(len(ragged))] == ROWS


def test_rows_are_pickled_as_the_name_of_their_file(ragged: Ragged) -> None:
    pickled = pickle.dumps(ragged)
    assert pickle.loads(pickled)[3].tolist() == [7, 8]
    assert len(pickled) < 1000


def test_texts_are_read_as_written(tmp_path: Path) -> None:
    texts = ["你好", "", "a b", "👩‍👩‍👧"]
    encoded = [text.encode() for text in texts]
    with ragged_writer(tmp_path / "texts") as append:
        append(b"".join(encoded), list(map(len, encoded)))
    stored = Ragged(tmp_path / "texts")
    assert stored.texts(np.arange(len(stored))) == texts
    assert stored.texts(np.array([3, 0])) == [texts[3], texts[0]]

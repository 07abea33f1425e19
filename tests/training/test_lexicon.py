"""The lexicon of a corpus whose dictionary is known."""

from pathlib import Path

import numpy as np
import pytest

from dragoman.data.store import Ragged, ragged_writer
from dragoman.training.initial import lexicon

# Source pieces 10 to 29 translate as 40 to 59. Every target also has 5 ("the"), and both sides have 6 (a full stop).
WORDS, THE, STOP, SIZE = range(10, 30), 5, 6, 60


@pytest.fixture
def ids(tmp_path: Path) -> Ragged:
    rng = np.random.default_rng(1)
    with ragged_writer(tmp_path / "train") as append:
        for _ in range(400):
            words = rng.choice(WORDS, 4, replace=False)
            src, tgt = [*words, STOP], [THE, *rng.permutation(words + 30), STOP]
            append(np.array([*src, *tgt], np.uint16).data, [len(src), len(tgt)])
    return Ragged(tmp_path / "train")


def test_each_word_weighs_most_beside_its_translation(ids: Ragged) -> None:
    src, tgt, weights = lexicon(ids, tgt_size=SIZE, joint=False)
    table = np.zeros((SIZE, SIZE))
    table[src, tgt] = weights
    assert (table[WORDS].argmax(axis=1) == np.array(WORDS) + 30).all()
    assert (table[WORDS, THE] < 0.1 * table[WORDS].max(axis=1)).all()


def test_memory_is_bounded(ids: Ragged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.training.initial._MAX_LINKS", 1)
    sources, *_ = lexicon(ids, tgt_size=SIZE, joint=False)
    assert len(set(sources)) <= 5  # those of one pair


def test_shared_pieces_have_no_entry_in_a_joint_vocabulary(ids: Ragged) -> None:
    assert STOP in lexicon(ids, tgt_size=SIZE, joint=False)[0]
    assert set(lexicon(ids, tgt_size=SIZE, joint=True)[0]) == set(WORDS)

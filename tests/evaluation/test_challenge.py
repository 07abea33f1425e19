"""The challenge set: checks of words, and the included sentences."""

import re
from collections import Counter
from pathlib import Path

import pytest

from dragoman.errors import UserError
from dragoman.evaluation.testsets import ChallengeSentence, count_passed, read_challenge
from dragoman.files import included

SWIM = ChallengeSentence("negation", "他不会游泳。", "can't|cannot|unable & swim*|bath & !can swim", "He can't swim.")


def test_every_condition_must_hold() -> None:
    right = ["He can’t SWIM.", "He cannot go swimming."]
    wrong = ["He is unable to bathe.", "He can't.", "I can't say that he can swim.", "He can'tt swim."]
    assert [text for text in right + wrong if SWIM.passes(text)] == right


def test_results_count_by_phenomenon() -> None:
    other = SWIM._replace(phenomenon="ba")
    counts = count_passed([SWIM, SWIM, other], ["He can't swim.", "He swims.", "He cannot swim."])
    assert counts == {"ba": (1, 1), "negation": (1, 2), "all": (2, 3)}


def test_included_items_are_many_and_pass_their_own_checks() -> None:
    sentences = read_challenge(included("data/challenge/zh_en.tsv"))
    assert len(sentences) >= 300
    assert all(sentence.passes(sentence.reference) for sentence in sentences)
    assert len({sentence.source for sentence in sentences}) == len(sentences)
    assert min(Counter(sentence.phenomenon for sentence in sentences).values()) >= 10
    # A translation that has nothing to do with the source passes hardly any.
    assert count_passed(sentences, ["It is good."] * len(sentences))["all"][0] < len(sentences) / 50


def test_a_faulty_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "set.tsv"
    for line, message in (
        ("ba\t把门关上。\tclose", "line 1: not four columns"),
        ("# a comment", "set.tsv: no sentence"),
        ("ba\t把门关上。\tclose | \tClose the door.", "an empty word in the check"),
    ):
        path.write_text(line + "\n", encoding="utf-8")
        with pytest.raises(UserError, match=re.escape(message)):
            read_challenge(path)

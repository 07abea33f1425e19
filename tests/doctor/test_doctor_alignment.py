"""Where two files slip against each other is found to a few lines, and nowhere else."""

from pathlib import Path

import numpy as np
import pytest

from dragoman.doctor import survey
from dragoman.doctor.characters import Sentences
from dragoman.doctor.findings import DRIFT, NEAR_LEAK
from dragoman.doctor.leaks import NEAR, HeldOut, grams
from planted import ask, clean_pairs, places, write

PAIRS = clean_pairs(1200)


def told(report: dict) -> list[str]:
    return [finding["told"] for finding in report["findings"] if finding["kind"] == DRIFT]


@pytest.mark.parametrize("seed", range(3))
def test_pairs_in_any_order_show_no_drift(seed: int, tmp_path: Path) -> None:
    assert told(ask(write(tmp_path, clean_pairs(1500, seed)))) == []
    assert told(ask(write(tmp_path, sorted(clean_pairs(1500, seed))))) == []
    assert told(ask(write(tmp_path, PAIRS * 2))) == []


@pytest.mark.parametrize(("side", "lost"), [(0, 1), (1, 1), (1, 3), (0, 40)])
def test_a_drift_in_files_of_equal_length_is_found_with_its_line_and_its_direction(
    side: int, lost: int, tmp_path: Path
) -> None:
    columns = [[src for src, _ in PAIRS], [tgt for _, tgt in PAIRS]]
    columns[side] = columns[side][:500] + columns[side][500 + lost :] + columns[side][:lost]
    report = ask(write(tmp_path, list(zip(*columns, strict=True))))
    found = places(report, DRIFT)
    assert abs(found[0] - 501) <= 6
    assert len(found) >= 600
    assert f"{lost} line{'s' if lost > 1 else ''} further on" in told(report)[0]
    assert f"the {('source', 'target')[side]} lacks {lost}" in told(report)[0]


def test_a_drift_that_is_made_good_later_ends_there(tmp_path: Path) -> None:
    src, tgt = ([pair[side] for pair in PAIRS] for side in (0, 1))
    tgt = tgt[:300] + tgt[301:900] + ["Something."] + tgt[900:]
    found = places(ask(write(tmp_path, list(zip(src, tgt, strict=True)))), DRIFT)
    assert abs(found[0] - 301) <= 6
    assert abs(found[-1] - 900) <= 6


def test_a_file_that_is_shifted_from_its_first_line_is_drift_from_there(tmp_path: Path) -> None:
    src, tgt = ([pair[side] for pair in PAIRS] for side in (0, 1))
    found = places(ask(write(tmp_path, list(zip(src, [*tgt[1:], tgt[0]], strict=True)))), DRIFT)
    assert found[0] <= 3


def test_a_stretch_that_goes_with_nothing_is_told_too(tmp_path: Path) -> None:
    pairs = clean_pairs(2000)
    chance = np.random.default_rng(1)
    mixed = [pairs[i][1] for i in 700 + chance.permutation(400)]
    pairs[700:1100] = [(src, tgt) for (src, _), tgt in zip(pairs[700:1100], mixed, strict=True)]
    report = ask(write(tmp_path, pairs))
    assert abs(places(report, DRIFT)[0] - 701) <= 15
    assert "nor do they with any of their neighbours" in told(report)[0]


def exact(one: str, other: str, n: int) -> float:
    both = [{text[i : i + n] for i in range(len(text) - n + 1)} for text in (one, other)]
    return len(both[0] & both[1]) / len(both[0] | both[1])


def test_near_sentences_are_those_of_a_high_jaccard_similarity() -> None:
    chance = np.random.default_rng(4)
    letters = np.array(list("abcdefghij"))
    held = ["".join(chance.choice(letters, 40)) for _ in range(60)]
    asked = []
    for text in held:
        for changed in range(0, 8):
            places_ = chance.choice(40, changed, replace=False)
            asked.append("".join("z" if i in places_ else letter for i, letter in enumerate(text)))
    found = {tuple(pair) for pair in HeldOut(held, 4).near(Sentences.of(asked)).tolist()}
    wanted = {
        (i, j) for i, one in enumerate(asked) for j, other in enumerate(held) if exact(one, other, 4) >= NEAR
    }
    assert found <= wanted
    assert len(found) >= 0.95 * len(wanted) > 60


def test_sentences_too_short_for_one_n_gram_are_near_to_nothing() -> None:
    assert len(grams(Sentences.of(["ab", "", "!!!!!!"]), 4).values) == 0
    assert len(HeldOut(["ab", ""], 4).near(Sentences.of(["ab", "abcdef"]))) == 0
    assert len(HeldOut([], 4).near(Sentences.of(["abcdef"]))) == 0


def test_a_survey_holds_no_sentence_but_the_sample_and_what_was_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "SAMPLE", 100)
    kept: list[int] = []
    count = survey.Surveyor._count

    def watched(self: survey.Surveyor, *arguments: object) -> None:
        count(self, *arguments)  # type: ignore[arg-type]
        kept.append(len(self._sample))

    monkeypatch.setattr(survey.Surveyor, "_count", watched)
    monkeypatch.setattr("dragoman.data.readers.CHUNK", 150)
    report = ask(write(tmp_path, clean_pairs(2000)))
    assert len(kept) > 10
    assert max(kept) <= 200
    assert report["tokens"]["pairs"] == 100
    assert not places(report, NEAR_LEAK)

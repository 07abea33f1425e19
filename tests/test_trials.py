"""Trials: made in the right order, never twice, never of mixed settings; and a noise rule that keeps its word."""

import json
import random
import statistics
import sys
from pathlib import Path

import pytest

from dragoman.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import trials as module  # noqa: E402
from trials import SEEDS, Scores, Trials, differs, mean_and_deviation, seeds_made  # noqa: E402

ROWS = {"a": {"n": 1}, "b": {"n": 2}}


class Laboratory:
    """Measures something at once, and remembers what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.trials = Trials(rows=ROWS, folder=folder, shown="n")
        self.asked: list[tuple[str, int]] = []

    def measure(self, row: str, seed: int) -> Scores:
        self.asked.append((row, seed))
        return {"n": 10 * ROWS[row]["n"] + seed}

    def work(self, **options: object) -> None:
        self.trials.make(self.measure, lambda: None, **options)  # type: ignore[arg-type]


@pytest.fixture
def laboratory(tmp_path: Path) -> Laboratory:
    return Laboratory(tmp_path / "results")


def test_every_row_has_its_first_seed_before_any_has_its_second(laboratory: Laboratory) -> None:
    laboratory.work()
    assert laboratory.asked == [(row, seed) for seed in SEEDS for row in ROWS]
    assert laboratory.trials.unfinished() == []
    assert [scores["n"] for scores in laboratory.trials.finished("b")] == [20 + seed for seed in SEEDS]


def test_what_is_finished_is_not_made_again(laboratory: Laboratory) -> None:
    laboratory.work(only=["b"])
    assert {row for row, _ in laboratory.asked} == {"b"}
    laboratory.asked.clear()
    laboratory.work()
    assert laboratory.asked == [("a", seed) for seed in SEEDS]


def test_a_trial_cut_short_leaves_nothing_and_is_made_again(laboratory: Laboratory) -> None:
    def cut_short(row: str, seed: int) -> Scores:
        if (row, seed) == ("b", SEEDS[0]):
            raise KeyboardInterrupt
        return laboratory.measure(row, seed)

    with pytest.raises(KeyboardInterrupt):
        laboratory.trials.make(cut_short, lambda: None)
    assert [path.name for path in laboratory.trials.folder.iterdir()] == [f"a-{SEEDS[0]}.json"]
    assert laboratory.trials.unfinished()[0] == ("b", SEEDS[0])


def test_no_trial_is_begun_that_would_not_end_in_time(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter(range(0, 10_000, 40))  # the clock is looked at three times for a trial: each takes 40 seconds
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))
    laboratory.work(minutes=3)
    assert len(laboratory.asked) == 1  # the second would have ended after 200 seconds
    assert "to go" in capsys.readouterr().out.splitlines()[-1]


def test_results_of_other_settings_are_refused(laboratory: Laboratory) -> None:
    laboratory.work()
    changed = Trials(rows={"a": {"n": 3}}, folder=laboratory.trials.folder, shown="n")
    with pytest.raises(UserError, match="other settings"):
        changed.finished("a")


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_a_file_that_is_no_result_is_named(laboratory: Laboratory, content: str) -> None:
    laboratory.work(only=["a"])
    path = laboratory.trials.folder / "a-1.json"
    assert json.loads(path.read_text())["seed"] == 1
    path.write_text(content)
    with pytest.raises(UserError, match=r"a-1\.json"):
        laboratory.work()


def test_an_unknown_row_names_the_choices(laboratory: Laboratory) -> None:
    with pytest.raises(UserError, match="there are a, b"):
        laboratory.work(only=["c"])


def test_a_row_with_missing_seeds_is_marked() -> None:
    for n in range(len(SEEDS)):
        assert "unfinished" in seeds_made(n)
    assert "unfinished" not in seeds_made(len(SEEDS))


def test_one_value_has_no_deviation() -> None:
    assert mean_and_deviation([]) == "-"
    assert mean_and_deviation([2.5]) == "2.50"
    assert mean_and_deviation([1, 2, 3]) == "2.00 ± 1.00"


def drawn(chance: random.Random, mean: float, deviation: float) -> list[float]:
    return [chance.gauss(mean, deviation) for _ in SEEDS]


@pytest.mark.parametrize("deviation", [1.0, 4.0], ids=["equal deviations", "unequal deviations"])
def test_where_nothing_differs_at_most_one_test_in_twenty_says_so(deviation: float) -> None:
    chance = random.Random(1)
    wrong = [differs(drawn(chance, 20, 1.0), drawn(chance, 20, deviation)) for _ in range(1000)]
    assert 0 < statistics.fmean(wrong) < 0.06


def test_a_difference_of_many_deviations_is_seen_and_does_not_depend_on_scale_or_order() -> None:
    chance = random.Random(2)
    for _ in range(200):
        a, b = drawn(chance, 20, 0.5), drawn(chance, 30, 0.5)
        assert differs(a, b)
    for _ in range(200):
        a, b = drawn(chance, 20, 1), drawn(chance, 22, 1)
        assert differs(a, b) == differs(b, a) == differs([8 * x for x in a], [8 * x for x in b])


def test_equal_values_are_told_from_others_without_any_variance() -> None:
    assert not differs([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    assert differs([0.0, 0.0, 0.0], [1.0, 1.0, 1.0])

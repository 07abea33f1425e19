"""The numbers of a report, against those worked out by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.data.tokenizer import TokenizerConfig
from dragoman.doctor import measures
from planted import ask, clean_pairs, write

# A piece for each character, whatever the corpus; and one more at the head of a sentence in a spaced language.
CHARACTERS = TokenizerConfig(kind="char", vocabulary="separate", character_coverage=1.0)


def measured(folder: Path, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    return ask(write(folder, pairs), tokenizer=CHARACTERS)


def different(n: int, src: int, tgt: int) -> list[tuple[str, str]]:
    """Pairs of so many characters, no sentence twice."""
    return [
        ("".join(chr(0x4E00 + (i + 7 * j) % 90) for j in range(src)), f"{i:03}".ljust(tgt, "x"))
        for i in range(n)
    ]


def limits(report: dict[str, Any]) -> set[str]:
    return {setting["word"] for setting in report["settings"] if setting["word"].startswith("data.max_")}


def test_lengths_are_those_of_the_sentences() -> None:
    found = measures.lengths(np.arange(1, 102))
    assert found["quantiles"] == {"0.01": 2, "0.5": 51, "0.99": 100, "1": 101}
    assert (found["n"], found["mean"], found["width"]) == (101, 51.0, 3)
    bars = found["bars"]
    assert isinstance(bars, list)
    assert bars[:2] == [2, 3]  # 1 and 2, 3 to 5
    assert (bars[33], sum(bars)) == (3, 101)  # 99 to 101
    assert bars[34:] == [0] * 7


@pytest.mark.parametrize(
    ("src", "tgt", "power"),
    [(9, 9, 0), (9, 39, 2), (39, 9, -2), (0, 10_000, 5), (10_000, 0, -5), (9, 13, 0.5)],
)
def test_the_ratio_is_of_the_target_to_the_source(src: int, tgt: int, power: float) -> None:
    found = measures.ratios(np.array([src, 9]), np.array([tgt, 9]))
    bars = found["bars"]
    assert isinstance(bars, list)
    expected = [0] * 41
    expected[round((power + 5) * 4)] += 1
    expected[20] += 1  # as long as each other
    assert bars == expected
    assert (found["least_power"], found["bars_per_power"]) == (-5, 4)


def test_pieces_are_counted_by_the_character_and_by_the_sentence(tmp_path: Path) -> None:
    tokens = measured(tmp_path, different(200, src=8, tgt=40))["tokens"]
    assert tokens["per_character"] == [1.0, pytest.approx(41 / 40, abs=0.001)]
    assert tokens["per_sentence"] == [8.0, 41.0]
    assert tokens["longer_side"] == {"0.5": 41, "0.99": 41, "0.999": 41, "1": 41}
    assert tokens["ratio"]["0.5"] == 4.1  # 41 / (8 + 2)
    assert (tokens["too_long"], tokens["unequal"]) == (0.0, 1.0)


@pytest.mark.parametrize(("n_long", "proposed"), [(1, set()), (20, {"data.max_length=320"})])
def test_a_longer_limit_is_proposed_where_the_one_in_use_drops_many(
    n_long: int, proposed: set[str], tmp_path: Path
) -> None:
    report = measured(tmp_path, different(400 - n_long, 20, 30) + different(n_long, 150, 300))
    assert limits(report) == proposed
    assert report["tokens"]["too_long"] == n_long / 400


@pytest.mark.parametrize(("n_unequal", "proposed"), [(1, set()), (20, {"data.max_ratio=6"})])
def test_a_larger_ratio_is_proposed_where_the_one_in_use_drops_many(
    n_unequal: int, proposed: set[str], tmp_path: Path
) -> None:
    report = measured(tmp_path, different(400 - n_unequal, 20, 30) + different(n_unequal, 5, 40))
    assert limits(report) == proposed
    assert report["tokens"]["unequal"] == n_unequal / 400


def test_of_many_suspects_twenty_are_shown(tmp_path: Path) -> None:
    pairs = clean_pairs(600)
    for i in range(0, 600, 10):  # sixty of three kinds
        src, tgt = pairs[i]
        pairs[i] = [(tgt, src), (src + "\ufffd", tgt), (src, f"{tgt} 锟斤拷")][i // 10 % 3]
    report = ask(write(tmp_path, pairs))
    assert len(report["suspects"]) == 20
    assert {suspect["line"] % 10 for suspect in report["suspects"]} == {1}

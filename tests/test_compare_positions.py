"""The reverse task is what it says, its scores count what they say, and one small round works from end to end."""

import random
import sys
from pathlib import Path

import pytest
import torch

from dragoman.model.position import POSITIONS
from dragoman.special import BOS, EOS, PAD

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import compare_positions as positions  # noqa: E402
from trials import SEEDS, Trials  # noqa: E402


def test_the_target_is_the_source_reversed_at_every_length_up_to_the_longest() -> None:
    batch = next(positions.batches(seed=1, n_sentences=300))
    seen = set()
    for src, tgt_in, tgt_out in zip(batch.src, batch.tgt_in, batch.tgt_out, strict=True):
        source = [i for i in src.tolist() if i not in (PAD, EOS)]
        seen.add(len(source))
        assert set(source) <= set(positions.SYMBOLS)
        assert [i for i in tgt_out.tolist() if i != PAD] == [*reversed(source), EOS]
        assert [i for i in tgt_in.tolist() if i != PAD] == [BOS, *reversed(source)]
    assert seen == set(range(1, positions.LONGEST + 1))


def test_every_scheme_has_its_row_and_differs_from_the_others_in_positions_only() -> None:
    rows = positions.rows()
    assert {row["position"]["kind"] for row in rows.values()} == set(POSITIONS)
    assert {row["position"]["base"] for row in rows.values() if "base" in row["position"]} == {
        100,
        1000,
        10000,
    }
    without = [{key: value for key, value in row.items() if key != "position"} for row in rows.values()]
    assert all(settings == without[0] for settings in without)


def test_what_is_missing_is_wrong_and_what_is_too_much_is_not_exact() -> None:
    reference = [5, 6, 7, 8]
    assert positions.score([reference], [reference]) == (100, 100)
    assert positions.score([[5, 6]], [reference]) == (0, 50)
    assert positions.score([[*reference, 9]], [reference]) == (0, 100)
    assert positions.score([[6, 7, 8]], [reference]) == (0, 0)  # the right symbols, one place too early
    assert positions.score([reference, [9, 9]], [reference, [5, 6]]) == (50, pytest.approx(100 * 4 / 6))


def test_the_test_strings_are_the_same_for_every_scheme_and_are_not_those_of_training() -> None:
    asked = positions.strings(random.Random("test 20"), 50, 20, 20)
    assert asked == positions.strings(random.Random("test 20"), 50, 20, 20)
    assert {len(string) for string in asked} == {20}
    trained = [row.tolist() for seed in SEEDS for row in next(positions.batches(seed, 300)).src]
    assert not [string for string in asked if [*string, EOS] in trained]


@pytest.mark.parametrize("row", positions.SCHEMES)
def test_every_scheme_learns_a_little_and_can_be_asked_for_the_longest_strings(row: str) -> None:
    settings = positions.rows({"steps": 2, "sentences": 4, "lr": 1e-3, "warmup_steps": 1})[row]
    model = positions.train(settings, seed=1)
    again = positions.train(settings, seed=1)
    for first, second in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    longest = positions.strings(random.Random(1), 2, positions.LENGTHS[-1], positions.LENGTHS[-1])
    exact, symbols = positions.accuracy(model, longest)
    assert exact == 0
    assert 0 <= symbols < 50


def test_an_unfinished_table_says_so_and_a_round_leaves_a_table_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, smaller in (("N_TESTS", 4), ("LENGTHS", (2, 3)), ("IN_TABLE", (2, 3))):
        monkeypatch.setattr(positions, name, smaller)
    rows = positions.rows({"steps": 2, "sentences": 4, "lr": 1e-3, "warmup_steps": 1})
    trials = Trials(rows=rows, folder=tmp_path, shown="exact_3")
    trials.make(
        lambda row, seed: positions.measure(rows[row], seed),
        lambda: positions.tell(trials),
        only=["rope"],
    )
    lines = {
        line.split(" | ")[0].strip("| "): line for line in (tmp_path / "table.md").read_text().splitlines()
    }
    assert "unfinished" in lines["alibi"]
    assert "unfinished" not in lines["rope"]
    assert lines["rope"].count("±") == 2 * len(positions.IN_TABLE)
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")

"""What is measured is what is said, a law that is broken is seen, and a small round leaves a table and a picture."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import bench_scale as scale  # noqa: E402
import measured_cell  # noqa: E402
from trials import Scores, Settings, Trials  # noqa: E402

X = [10.0, 100.0, 1000.0]


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_is_found(power: float) -> None:
    assert scale.exponent(X, [3 * x**power for x in X]) == pytest.approx(power, abs=1e-9)


def test_what_grows_faster_than_its_law_is_marked_and_a_fixed_share_is_forgiven() -> None:
    linear = [2 * x for x in X]
    assert scale.excess(linear, X) == pytest.approx(1)
    assert "too fast" in scale.verdict(scale.excess([x**1.2 for x in X], X))
    assert "too fast" not in scale.verdict(scale.excess([x + 500 for x in X], X))


def settings_of(sweep: str) -> list[Settings]:
    return [settings for settings in scale.rows("").values() if settings["sweep"] == sweep]


def test_operations_for_a_token_grow_with_length_and_size_but_not_with_the_batch() -> None:
    of = {
        sweep: [scale.operations(s, {}) for s in settings_of(sweep)] for sweep in ("length", "size", "batch")
    }
    assert np.all(np.diff(of["length"]) > 0)
    assert np.all(np.diff(of["size"]) > 0)
    assert of["batch"] == pytest.approx([of["batch"][0]] * len(of["batch"]))


def test_attention_is_what_makes_length_cost_and_its_share_is_linear_in_it() -> None:
    """For a token the products with the weights are the same at any length; what is left doubles with it."""
    lengths = [s["length"] for s in settings_of("length")]
    costs = [scale.operations(s, {}) for s in settings_of("length")]
    slopes = np.diff(costs) / np.diff(lengths)
    assert slopes == pytest.approx([slopes[0]] * len(slopes))


def test_the_corpus_is_the_large_one_where_it_is_at_hand(tmp_path: Path) -> None:
    (tmp_path / "subtitles").mkdir()
    found = {
        root: {s["corpus"] for s in scale.rows(root).values() if "corpus" in s}
        for root in ("", str(tmp_path))
    }
    assert found == {"": {"data/phrasebook"}, str(tmp_path): {"subtitles"}}


def test_one_step_and_one_translation_of_each_kind_are_really_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_cell, "VOCABULARY", 50)
    monkeypatch.setattr(measured_cell, "SECONDS", 0.0)
    monkeypatch.setattr(
        measured_cell, "keep_freed_memory", lambda: None
    )  # it would hold for every test after this
    trained = measured_cell.train("tiny", length=8, tokens=64)
    assert trained["train_ms"] > 0
    assert measured_cell.decode("tiny", length=8)["decode_s"] > 0


def made_up(settings: Settings, scores: Scores) -> Scores:
    """Scores that keep to their laws, but that memory grows like the square of its law."""
    sweep = scale.SWEEPS[settings["sweep"]]
    found = {name: law.of(settings, scores) for name, (_, law) in sweep.costs.items()}
    return (
        scores | found | {f"{key}_mb": found[f"{key}_mb"] ** 2 for key in ("train",) if f"{key}_mb" in found}
    )


def test_a_table_and_a_picture_come_of_what_there_is_and_name_what_grows_too_fast(tmp_path: Path) -> None:
    trials = Trials(rows=scale.rows(""), folder=tmp_path, shown="cost")
    scale.tell(trials)  # nothing yet

    def measure(row: str, seed: int) -> Scores:
        settings = trials.rows[row]
        return made_up(settings, {"pairs": settings.get("asked", 0), "cost": 1.0})

    trials.make(measure, lambda: None, only=["pairs_1000", "pairs_5000", "batch_256", "batch_8192"])
    scale.tell(trials)
    lines = (tmp_path / "table.md").read_text().splitlines()
    pairs, batch = (line for line in lines if line.startswith("| at the end"))
    assert "too fast" not in pairs
    assert batch.count("too fast") == 1
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_corpus_of_some_pairs_is_prepared_and_started_on_a_second_time() -> None:
    scores = scale.corpus_scores("data/phrasebook", 600)
    assert scores["pairs"] == 600
    assert scores["start_s"] > scores["import_s"] > 0
    assert scores["cache_mb"] > 0

"""Every row is a run that train.py accepts, the table says what is noise and what is missing, and one run is real."""

import json
import sys
from pathlib import Path

import pytest

from dragoman.config import check
from dragoman.errors import UserError
from dragoman.model.attention import SCORES
from dragoman.model.position import POSITIONS

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import compare_choices as choices  # noqa: E402
from trials import SEEDS, Trials  # noqa: E402


@pytest.mark.parametrize("row", choices.ROWS)
def test_every_row_is_a_configuration_that_train_accepts(row: str) -> None:
    check([*choices.BASELINE, *choices.ROWS[row]])


def test_every_scheme_and_score_has_a_row() -> None:
    changes = {change for changes in choices.ROWS.values() for change in changes}
    assert {f"model.position.kind={kind}" for kind in POSITIONS} - changes == {
        "model.position.kind=sinusoidal"
    }
    assert {f"model.score={score}" for score in SCORES} - changes == {"model.score=scaled_dot"}


def trials_with(folder: Path, bleus: dict[str, list[float]]) -> Trials:
    """Results as measured, in `folder`: {row: BLEU of its seeds so far}."""
    trials = Trials(rows=choices.rows(), folder=folder, shown="bleu")
    found = {
        (row, seed): bleu for row, some in bleus.items() for seed, bleu in zip(SEEDS, some, strict=False)
    }
    some = {row for row, _ in found}

    def measure(row: str, seed: int) -> dict[str, object]:
        if (row, seed) not in found:
            raise KeyboardInterrupt
        return {"bleu": found[row, seed], "signature": "nrefs:6|tok:13a"}

    for row in some:
        try:
            trials.make(measure, lambda: None, only=[row])
        except KeyboardInterrupt:
            continue
    return trials


def test_the_table_tells_noise_from_differences_and_unfinished_rows_from_finished_ones(
    tmp_path: Path,
) -> None:
    trials = trials_with(
        tmp_path,
        {
            "baseline": [20.0, 20.4, 20.8],
            "position_rope": [20.1, 20.6, 21.0],
            "position_none": [10.0, 10.3, 10.9],
            "norm_post": [25.0, 25.3, 25.9],
            "score_dot": [1.0, 1.1],
        },
    )
    lines = choices.table(trials).splitlines()

    def line(of: str) -> str:
        return next(line for line in lines if of in line)

    assert "+0.17 | noise | 3 |" in line("kind=rope")
    assert "-10.00 | worse | 3 |" in line("kind=none")
    assert "+5.00 | better | 3 |" in line("norm=post")
    assert "1.05 ± 0.07 |  |  | 2 of 3, **unfinished** |" in line("score=dot")
    assert "- |  |  | 0 of 3, **unfinished** |" in line("score=additive")
    assert "nrefs:6|tok:13a" in lines[-1]


def test_nothing_is_compared_before_the_baseline_is_finished(tmp_path: Path) -> None:
    trials = trials_with(tmp_path, {"baseline": [20.0], "position_none": [10.0, 10.3, 10.9]})
    assert "worse" not in choices.table(trials)


def test_a_run_that_fails_is_told_in_one_line_with_its_last_words() -> None:
    with pytest.raises(UserError, match=r"experiment=zh_enn left with 2: .*did you mean 'zh_en'") as error:
        choices.door("train.py", "experiment=zh_enn")
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_run_is_trained_and_scored_by_the_programs_own_commands(tmp_path: Path) -> None:
    pairs = (ROOT / "data" / "phrasebook" / "handwritten" / "people.tsv").read_text(encoding="utf-8")
    mine = [line.split("\t")[:2] for line in pairs.splitlines()][:400]
    (tmp_path / "my.tsv").write_text("".join(f"{zh}\t{en}\n" for zh, en in mine), encoding="utf-8")
    tiny = [
        f"data.corpora=[{{path: {tmp_path}/my.tsv}}]", f"data.cache={tmp_path}/cache",
        "data.tokenizer.vocab_size=800", "data.validation_size=20", "data.test_size=20",
        "model=tiny", "model.d_model=16", "model.d_ff=16", "trainer=cpu", "search.max_length_b=3",
        "trainer.max_steps=2", "trainer.validate_every=2", "trainer.validation_pairs=2", "trainer.samples=0",
    ]  # fmt: skip
    settings = choices.rows(tiny)["position_rope"]
    (tmp_path / "runs" / "position_rope-1").mkdir(parents=True)
    (tmp_path / "runs" / "position_rope-1" / "left").touch()  # by a trial that was cut short
    scores = choices.measure("position_rope", 1, settings, tmp_path / "runs")
    assert scores["step"] == 2
    assert 0 <= scores["bleu"] <= 100
    assert "tok:13a" in scores["signature"]
    config = (tmp_path / "runs" / "position_rope-1" / "config.yaml").read_text(encoding="utf-8")
    assert "kind: rope" in config
    assert json.dumps(scores)

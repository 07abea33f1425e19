"""What the choices do to translation: DRAGOMAN_DATA=FOLDER python scripts/compare_choices.py [--minutes 60]

One small Chinese-English model on tatoeba is the baseline; every other row changes one thing about it and is trained
for the same number of steps, with three seeds. Each trial is what a person would type: train.py with the settings
below, then evaluate.py on the test split (beam 5, all references). BLEU is sacrebleu's; its signature stands under
the table.

The models are far from good: they see the corpus twice only, and every row has the learning rate of the
baseline. The table tells what matters early and on little data, not which model would be best in the end.

Results go to scripts/results/choices/: a file for each row and seed, and table.md, written again after each trial.
The runs themselves, 45 MB each, are in runs/choices/ and may be removed. The same command goes on where it was
stopped; a trial that was cut short is made again from its beginning.
"""

import json
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dragoman.doors import Parser, open_door
from dragoman.errors import UserError
from trials import SEEDS, Scores, Settings, Trials, differs, markdown, mean_and_deviation, seeds_made, write

ROOT = Path(__file__).resolve().parents[1]

BASELINE = [
    "data=tatoeba", "data.max_tokens=1000", "data.tokenizer.kind=unigram", "data.tokenizer.vocab_size=4000",
    "model=tiny", "search=beam",
    "training.lr=3e-3", "training.schedule=cosine", "training.warmup_steps=100",
    "trainer=cpu", "trainer.precision=32", "trainer.max_steps=600",
    "trainer.validate_every=600", "trainer.validation_pairs=100", "trainer.samples=0", "trainer.keep_snapshots=1",
]  # fmt: skip
# What the baseline has where a row has something else
CHOSEN = "sinusoidal positions, pre-norm, scaled dot product, one joint vocabulary in one matrix (`tie=all`)"

ROWS: dict[str, list[str]] = {
    "baseline": [],
    "position_none": ["model.position.kind=none"],
    "position_integer": ["model.position.kind=integer"],
    "position_unit": ["model.position.kind=unit"],
    "position_learned": ["model.position.kind=learned"],
    "position_rope": ["model.position.kind=rope"],
    "position_t5": ["model.position.kind=t5"],
    "position_transformer_xl": ["model.position.kind=transformer_xl"],
    "position_alibi": ["model.position.kind=alibi"],
    "norm_post": ["model.norm=post"],
    "score_dot": ["model.score=dot"],
    "score_additive": ["model.score=additive"],
    # Two vocabularies cannot share a matrix. So that the two changes can be told apart, one row has only the second.
    "vocabulary_separate": ["data.tokenizer.vocabulary=separate", "model.tie=tgt"],
    "vocabulary_joint_tie_tgt": ["model.tie=tgt"],
}


def main() -> None:
    parser = Parser("compare_choices.py", __doc__ or "")
    parser.add_argument("--minutes", type=float, metavar="N", help="begin nothing that would end later")
    parser.add_argument("--only", nargs="+", metavar="ROW", help=f"of {', '.join(ROWS)}")
    default = ROOT / "scripts" / "results" / "choices"
    parser.add_argument(
        "--results", type=Path, default=default, metavar="FOLDER", help="scripts/results/choices"
    )
    args = parser.parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # takes train.py along
    trials = Trials(rows=rows(), folder=args.results, shown="bleu")
    trials.make(
        lambda row, seed: measure(row, seed, trials.rows[row], ROOT / "runs" / "choices"),
        lambda: tell(trials),
        minutes=args.minutes,
        only=args.only,
    )
    tell(trials)
    print(table(trials), end="")


def rows(baseline: Sequence[str] = BASELINE) -> dict[str, Settings]:
    """Each row's settings: train.py's words for the baseline, and those that the row adds."""
    return {name: {"baseline": list(baseline), "changes": changes} for name, changes in ROWS.items()}


def measure(row: str, seed: int, settings: Settings, runs: Path) -> Scores:
    """Train in runs/ROW-SEED with the program's own commands, and read what they wrote."""
    run = runs / f"{row}-{seed}"
    if run.exists():  # of a trial that was cut short, perhaps with other settings
        shutil.rmtree(run)
    words = [*settings["baseline"], *settings["changes"]]
    door("train.py", *words, f"name={run.name}", f"run_dir={run}", f"seed={seed}")
    door("scripts/evaluate.py", "--model", str(run))
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    found = json.loads((run / "evaluation" / "test" / "scores.json").read_text(encoding="utf-8"))
    return {
        "bleu": found["scores"]["bleu"]["score"],
        "chrf": found["scores"]["chrf"]["score"],
        "signature": found["scores"]["bleu"]["signature"],
        "validation_loss": metrics["best"]["loss"],
        "step": metrics["step"],
        "training_seconds": metrics["seconds"],
    }


def door(*command: str) -> None:
    """Run one of the program's own commands. Raises UserError with its last words if it fails."""
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise UserError(f"python {' '.join(command)} left with {done.returncode}: {' '.join(last)}")


def tell(trials: Trials) -> None:
    """Write table.md from what there is."""
    trials.folder.mkdir(parents=True, exist_ok=True)
    write(trials.folder / "table.md", table(trials))


def table(trials: Trials) -> str:
    """Mean ± standard deviation of BLEU, and whether it differs from the baseline's by more than noise."""
    found = {row: trials.finished(row) for row in trials.rows}
    bleus = {row: [scores["bleu"] for scores in found[row]] for row in found}
    lines = []
    for row, settings in trials.rows.items():
        changes = ", ".join(f"`{change}`" for change in settings["changes"])
        compared = verdict(bleus[row], bleus["baseline"]) if changes else ("", "")
        lines.append(
            [changes or "baseline", mean_and_deviation(bleus[row]), *compared, seeds_made(len(found[row]))]
        )
    signatures = sorted({f"`{scores['signature']}`" for row in found for scores in found[row]})
    n_tests = len(lines) - 1
    return markdown(["changed", "BLEU", "difference", "which is", "seeds"], lines) + (
        f"\nBaseline: {CHOSEN}. Test BLEU at beam 5, mean ± standard deviation of {len(SEEDS)} seeds "
        f"({', '.join(signatures) or 'none yet'}). Noise: Welch's t-test sees no difference from the baseline at "
        f"95 %. If no row differed in truth, {n_tests} such tests would still see {n_tests / 20:.1f} differences.\n"
    )


def verdict(bleus: Sequence[float], baseline: Sequence[float]) -> tuple[str, str]:
    """The difference of the means, and what it is worth; nothing is said before all seeds are there."""
    if len(bleus) < len(SEEDS) or len(baseline) < len(SEEDS):
        return "", ""
    difference = statistics.fmean(bleus) - statistics.fmean(baseline)
    worth = ("better" if difference > 0 else "worse") if differs(bleus, baseline) else "noise"
    return f"{difference:+.2f}", worth


if __name__ == "__main__":
    open_door(main)

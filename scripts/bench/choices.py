"""Model choices and BLEU: DRAGOMAN_DATA=FOLDER python scripts/bench/choices.py

The baseline is a small Chinese-English model on tatoeba: two epochs, nine from row "recipe" on, three seeds. Every
other row changes one setting. The runs, 45 MB each, and table.md are in runs/choices; the same command resumes.
"""

import json
import math
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

from tables import Record, markdown, mean_and_deviation, measure_missing

from dragoman import files
from dragoman.commands.cli import Parser, command

ROOT = Path(__file__).resolve().parents[2]
FOLDER, SEEDS = Path("runs/choices"), (1, 2, 3)
T_95 = 2.776  # of Student's t with 4 degrees of freedom, 95 % lie between -T_95 and T_95
BASELINE = (
    "data=tatoeba data.max_tokens=1000 data.tokenizer.kind=unigram data.tokenizer.vocab_size=4000 recipe=none "
    "model=tiny search=beam training.lr=3e-3 training.schedule=cosine training.warmup_steps=100 trainer=cpu "
    "trainer.precision=32 trainer.max_steps=600 trainer.validate_every=600 trainer.validation_pairs=100 "
    "trainer.samples=0 trainer.keep_snapshots=1"
)
RECIPE = (
    "trainer.max_steps=2000 trainer.validate_every=2000 trainer.precision=auto data.max_tokens=1500 model.dropout=0.2 "
    "training.weight_decay=0.1 training.ema=0.99"
)
SCHEMES = ("none", "integer", "unit", "sentence_unit", "product", "learned", "rope", "t5", "transformer_xl", "alibi")
ROWS = {
    "baseline": "",
    **{f"position_{kind}": f"model.position.kind={kind}" for kind in SCHEMES},
    "norm_post": "model.norm=post",
    **{f"score_{kind}": f"model.score={kind}" for kind in ("dot", "additive")},
    # Two vocabularies cannot share a matrix; the second row has only the latter change.
    "vocabulary_separate": "data.tokenizer.vocabulary=separate model.tie=tgt",
    "vocabulary_joint_tie_tgt": "model.tie=tgt",
    "recipe": RECIPE,
    **{f"recipe_decay_{decay}": f"{RECIPE} training.weight_decay={decay}" for decay in ("0.01", "0.3", "1")},
    "recipe_pieces": f"{RECIPE} data.tokenizer.vocab_size=8000",
    "recipe_separate": f"{RECIPE} data.tokenizer.vocabulary=separate model.tie=tgt",
    "recipe_smoothing": f"{RECIPE} training.label_smoothing=0.2",
    "recipe_ema": f"{RECIPE} training.ema=0",
    "recipe_sampling": f"{RECIPE} data.tokenizer.sampling=0.1",
    "recipe_depth": f"{RECIPE} model.n_encoder_layers=4 model.n_decoder_layers=1",
    "recipe_lexicon": f"{RECIPE} model.embedding.init=lexicon",
}


@command
def main(argv: list[str]) -> None:
    parser = Parser(__doc__)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="more settings of every row, as for train.py")
    parser.add_argument("--only", nargs="+", default=list(ROWS), choices=ROWS, help="rows (all)")
    args = parser.parse_args(argv)
    trials = [f"{row}-{seed}" for seed in SEEDS for row in args.only]  # the first seed of every row, then the second
    records = measure_missing(FOLDER, trials, partial(measure, more=args.settings))
    files.write(FOLDER / "table.md", table(records).encode())
    print(table(records), end="")


def measure(trial: str, more: list[str]) -> Record:
    """Train and evaluate ROW-SEED; return its BLEU."""
    (row, _, seed), run = trial.rpartition("-"), FOLDER / trial
    settings = [*BASELINE.split(), *ROWS[row].split(), *more, f"name={trial}", f"run_dir={run}", f"seed={seed}"]
    for program, *arguments in (["train.py", *settings], ["scripts/evaluate.py", "--model", str(run)]):
        subprocess.run([sys.executable, ROOT / program, *arguments], stdout=subprocess.DEVNULL, check=True)
    return json.loads((run / "evaluation/test/scores.json").read_text(encoding="utf-8"))["scores"]["bleu"]


def table(records: Record) -> str:
    """Mean ± standard deviation of BLEU, and a t-test against the baseline or recipe."""
    bleus = {row: [records[f"{row}-{seed}"]["score"] for seed in SEEDS if f"{row}-{seed}" in records] for row in ROWS}
    signatures = {f"`{record['signature']}`" for record in records.values()}
    lines = []
    for row, values in bleus.items():
        difference = verdict = ""
        first = "recipe" if row.startswith("recipe") else "baseline"
        if row != first and len(values) == len(bleus[first]) == len(SEEDS):
            gap = statistics.fmean(values) - statistics.fmean(bleus[first])
            noise = T_95 * math.sqrt((statistics.variance(values) + statistics.variance(bleus[first])) / len(SEEDS))
            difference, verdict = f"{gap:+.2f}", "noise" if abs(gap) <= noise else "better" if gap > 0 else "worse"
        changes = ", ".join(f"`{change}`" for change in ROWS[row].removeprefix(ROWS[first]).split()) or first
        lines.append([changes, mean_and_deviation(values), difference, verdict, str(len(values))])
    return markdown(["changed", "BLEU", "difference", "verdict", "seeds"], lines) + (
        "\nBaseline: sinusoidal positions, pre-norm, scaled dot product, one joint vocabulary in one matrix. "
        f"Recipe, with which the rows below it are compared: {RECIPE}. Test BLEU at beam 5, mean ± standard "
        f"deviation of the seeds ({', '.join(signatures) or 'none yet'}). Noise: no difference in a t-test at 95 %.\n"
    )


if __name__ == "__main__":
    sys.exit(main())

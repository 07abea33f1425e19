"""Length generalisation: python scripts/bench/positions.py [--only rope alibi]

A small model learns to reverse strings of 1 to 20 random symbols, and is tested on strings of up to 80. Scores in
percent: `exact`, strings reversed without a mistake; `symbols`, positions with the right symbol (by chance 1 in 30).
Results go to runs/bench/positions: a file for each scheme and seed (measured once), table.md and lengths.png.
"""

import random
import statistics
import sys
from functools import partial

import torch
from loop import train
from tables import FOLDER as RESULTS
from tables import Record, markdown, mean_and_deviation, measure_missing

from dragoman import files
from dragoman.commands.cli import Parser, command
from dragoman.config import ModelConfig, PositionConfig, SearchConfig
from dragoman.data.collate import collate
from dragoman.explain.picture import curve_figure
from dragoman.model.transformer import Transformer
from dragoman.special import EOS
from dragoman.training.module import learning_rate
from dragoman.translation.engine import translate_ids

SYMBOLS = range(EOS + 1, EOS + 31)  # thirty ids, after the special ones
LONGEST = 20  # in training
LENGTHS, N_TESTS = (20, 25, 40, 80), 200  # in testing, and the strings of each
POSITIONS = LENGTHS[-1] + 2  # size of position tables: with <BOS> or <EOS>, and one symbol too many
FOLDER, SEEDS = RESULTS / "positions", (1, 2, 3)
STEPS, N_SENTENCES = 1500, 64  # training steps, strings in a batch
SIZES: Record = {"d_model": 64, "d_ff": 256, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 2}
SCHEMES: dict[str, Record] = {
    **{kind: {"kind": kind} for kind in ("none", "integer", "product", "rope", "t5", "transformer_xl", "alibi")},
    **{kind: {"kind": kind, "length": POSITIONS} for kind in ("unit", "sentence_unit", "learned")},
    **{f"sinusoidal_{base}": {"kind": "sinusoidal", "base": float(base)} for base in (100, 1000, 10000)},
}


@command
def main(argv: list[str]) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--only", nargs="+", default=list(SCHEMES), choices=SCHEMES, help="schemes (all)")
    args = parser.parse_args(argv)
    # A model of this size is no faster with a second thread.
    torch.set_num_threads(1)
    # Seeds in the outer loop: an interrupted benchmark has files of every scheme.
    records = measure_missing(FOLDER, [f"{name}-{seed}" for seed in SEEDS for name in args.only], measure)
    files.write(FOLDER / "table.md", table(records).encode())
    files.write(FOLDER / "lengths.png", picture(records))
    print(table(records), end="")


def measure(trial: str, n_steps: int = STEPS) -> Record:
    """Train SCHEME-SEED; return percentages "exact_LENGTH" and "symbols_LENGTH"."""
    name, _, seed = trial.rpartition("-")
    torch.manual_seed(int(seed))
    # Every batch has new strings, so the model cannot overfit and needs no dropout.
    config = ModelConfig(position=PositionConfig(**SCHEMES[name]), dropout=0.0, **SIZES)
    model = Transformer(config, src_vocab_size=SYMBOLS.stop, tgt_vocab_size=SYMBOLS.stop)
    generator = random.Random(int(seed))
    rows = (strings(generator, N_SENTENCES, 1, LONGEST) for _ in range(n_steps))
    batches = (collate(sources, [source[::-1] for source in sources]) for sources in rows)
    rate = partial(learning_rate, "cosine", peak=2e-3, warmup_steps=200, max_steps=n_steps)
    train(model, batches, rate, weight_decay=1e-4)
    scores: Record = {}
    for length in LENGTHS:
        exact, symbols = accuracy(model, strings(random.Random(f"test {length}"), N_TESTS, length, length))
        scores |= {f"exact_{length}": exact, f"symbols_{length}": symbols}
    return scores


def strings(generator: random.Random, n: int, shortest: int, longest: int) -> list[list[int]]:
    """Return n strings of random symbols; all lengths are equally likely."""
    return [generator.choices(SYMBOLS, k=generator.randint(shortest, longest)) for _ in range(n)]


def accuracy(model: Transformer, sources: list[list[int]]) -> tuple[float, float]:
    """Return (exact, symbols) in percent.

    A missing symbol counts as wrong. A symbol too many changes only `exact`.
    """
    search = SearchConfig(kind="greedy", max_length_a=1.0, max_length_b=1)
    results = translate_ids(model, sources, search, batch_tokens=N_TESTS * (LENGTHS[-1] + 1))
    pairs = [(hypothesis.ids, source[::-1]) for (hypothesis,), source in zip(results, sources, strict=True)]
    n_exact = sum(ids == reference for ids, reference in pairs)
    n_right = sum(a == b for ids, reference in pairs for a, b in zip(ids, reference, strict=False))
    return 100 * n_exact / len(pairs), 100 * n_right / sum(map(len, sources))


def of_scheme(records: Record, name: str) -> list[Record]:
    """The scores of a scheme, for each seed measured so far."""
    return [records[trial] for seed in SEEDS if (trial := f"{name}-{seed}") in records]


def table(records: Record) -> str:
    """A Markdown table: mean ± standard deviation over the seeds."""
    columns = [f"{kind}_{length}" for kind in ("exact", "symbols") for length in LENGTHS]
    lines = []
    for name in SCHEMES:
        scores = of_scheme(records, name)
        cells = [mean_and_deviation([each[column] for each in scores]) for column in columns]
        lines.append([name, *cells, str(len(scores))])
    header = ["positions", *(column.replace("_", " at ") for column in columns), "seeds"]
    return markdown(header, lines) + (
        f"\nPercent, mean ± standard deviation of the seeds; trained on 1 to {LONGEST} symbols, tested on {N_TESTS} "
        "strings of each length.\n"
    )


def picture(records: Record) -> bytes:
    """Draw the share of right symbols by length, one line for each scheme."""
    lines = {}
    for name in SCHEMES:
        if scores := of_scheme(records, name):
            means = [statistics.fmean(each[f"symbols_{length}"] for each in scores) for length in LENGTHS]
            lines[name] = (LENGTHS, means)
    return curve_figure(lines, "symbols in the string", "symbols right, %", "Reversing strings")


if __name__ == "__main__":
    sys.exit(main())

"""Position schemes and length: python scripts/bench/positions.py [--only rope alibi]

The task is to reverse a string of symbols. The same small model is trained with each scheme on strings of 1 to 20
symbols, and then reverses 200 strings of each of several lengths, up to 80. The symbols are random, so the task needs
exact positions.

Scores in percent: `exact`, share of strings that are reversed without a mistake; `symbols`, share of positions with the
right symbol (by chance 1 in 30). Results go to runs/bench/positions: a file for each scheme and seed, table.md and
lengths.png.
"""

import json
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tables import Record, markdown, mean_and_deviation
from torch.nn import functional as F

from dragoman import files
from dragoman.commands.cli import Parser, command
from dragoman.config import ModelConfig, PositionConfig, SearchConfig
from dragoman.data.collate import collate
from dragoman.explain.picture import curve_figure
from dragoman.model.transformer import Transformer
from dragoman.special import EOS, PAD
from dragoman.training.schedule import learning_rate
from dragoman.translation.engine import translate_ids

SYMBOLS = range(EOS + 1, EOS + 31)  # thirty ids, after the special ones
LONGEST = 20  # in training
LENGTHS = (10, 20, 25, 30, 40, 60, 80)  # in testing
IN_TABLE = (20, 25, 40, 80)  # lengths with a column in the table
N_TESTS = 200  # of each length
POSITIONS = LENGTHS[-1] + 2  # size of position tables: with <BOS> or <EOS>, and one symbol too many
FOLDER, SEEDS = Path("runs/bench/positions"), (1, 2, 3)
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
    args = parser.parse(argv)
    # So small a model is no faster with a second thread.
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Seeds in the outer loop, so that an interrupted benchmark has a result for every scheme.
    for seed in SEEDS:
        for name in args.only:
            path = FOLDER / f"{name}-{seed}.json"
            if not path.exists():
                print(f"{name}, seed {seed}", flush=True)
                files.write(path, json.dumps(measure(name, seed)).encode())
                files.write(FOLDER / "table.md", table().encode())
    files.write(FOLDER / "lengths.png", picture())
    print(table(), end="")


def measure(name: str, seed: int, n_steps: int = STEPS) -> Record:
    """Train one model and return {"exact_LENGTH": percent, "symbols_LENGTH": percent}."""
    model = train(PositionConfig(**SCHEMES[name]), seed, n_steps)
    scores: Record = {}
    for length in LENGTHS:
        exact, symbols = accuracy(model, strings(random.Random(f"test {length}"), N_TESTS, length, length))
        scores |= {f"exact_{length}": exact, f"symbols_{length}": symbols}
    return scores


def strings(generator: random.Random, n: int, shortest: int, longest: int) -> list[list[int]]:
    """Return n strings of random symbols; all lengths are equally likely."""
    return [generator.choices(SYMBOLS, k=generator.randint(shortest, longest)) for _ in range(n)]


def train(position: PositionConfig, seed: int, n_steps: int) -> Transformer:
    """Train with AdamW and a cosine schedule with warm-up."""
    torch.manual_seed(seed)
    # Every batch has new strings, so the model cannot overfit and needs no dropout.
    config = ModelConfig(position=position, dropout=0.0, **SIZES)
    model = Transformer(config, src_vocab_size=SYMBOLS.stop, tgt_vocab_size=SYMBOLS.stop)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=1e-4, fused=True)
    generator = random.Random(seed)
    for step in range(1, n_steps + 1):
        sources = strings(generator, N_SENTENCES, 1, LONGEST)
        batch = collate(sources, [source[::-1] for source in sources])
        lr = learning_rate("cosine", step, peak=2e-3, warmup_steps=200, max_steps=n_steps)
        optimizer.param_groups[0]["lr"] = lr
        logits = model(batch.src, batch.tgt_in, batch.src_key_padding_mask)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def accuracy(model: Transformer, sources: Sequence[list[int]]) -> tuple[float, float]:
    """Return (exact, symbols) in percent.

    A missing symbol counts as wrong. A symbol too many matters for `exact` only.
    """
    search = SearchConfig(kind="greedy", max_length_a=1.0, max_length_b=1)
    results = translate_ids(model, sources, search, batch_tokens=N_TESTS * (LENGTHS[-1] + 1))
    n_exact = n_right = n_symbols = 0
    for (hypothesis,), source in zip(results, sources, strict=True):
        reference = source[::-1]
        n_exact += hypothesis.ids == reference
        n_right += sum(a == b for a, b in zip(hypothesis.ids, reference, strict=False))
        n_symbols += len(reference)
    return 100 * n_exact / len(sources), 100 * n_right / n_symbols


def results(name: str) -> list[Record]:
    """Return the scores of a scheme, one record for each seed measured so far."""
    paths = (FOLDER / f"{name}-{seed}.json" for seed in SEEDS)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def table() -> str:
    """Return a Markdown table: mean ± standard deviation over the seeds."""
    columns = [f"{kind}_{length}" for kind in ("exact", "symbols") for length in IN_TABLE]
    lines = []
    for name in SCHEMES:
        scores = results(name)
        cells = [mean_and_deviation([each[column] for each in scores]) for column in columns]
        lines.append([name, *cells, str(len(scores))])
    header = ["positions", *(column.replace("_", " at ") for column in columns), "seeds"]
    return markdown(header, lines) + (
        f"\nPercent, mean ± standard deviation of the seeds; trained on 1 to {LONGEST} symbols, tested on {N_TESTS} "
        "strings of each length.\n"
    )


def picture() -> bytes:
    """Draw the share of right symbols by length, one line for each scheme."""
    lines = {}
    for name in SCHEMES:
        scores = results(name)
        if scores:
            means = [statistics.fmean(each[f"symbols_{length}"] for each in scores) for length in LENGTHS]
            lines[name] = (LENGTHS, means)
    return curve_figure(lines, "symbols in the string", "% in their place", "Reversing strings")


if __name__ == "__main__":
    sys.exit(main())

"""Position schemes and length: python scripts/bench/positions.py [--only rope alibi]

The task is to reverse a string of symbols. Every scheme trains the same small model on strings of 1 to 20 symbols,
then reverses 200 longer strings of each length. The symbols are random, so only a model that knows the place of each
one can be right.

In percent: `exact`, strings reversed without a mistake; `symbols`, places of the true answer with the right symbol
(chance: 1 in 30). Results go to runs/bench/positions: a file for each scheme and seed, table.md and lengths.png.
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
IN_TABLE = (20, 25, 40, 80)
N_TESTS = 200  # of each length
POSITIONS = LENGTHS[-1] + 2  # with <BOS> or <EOS>, and one symbol too many
FOLDER, SEEDS = Path("runs/bench/positions"), (1, 2, 3)
STEPS, N_SENTENCES = 1500, 64  # of the training, and of each batch
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
    torch.set_num_threads(1)  # a second thread makes so small a model no faster
    FOLDER.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:  # every scheme has its first seed before any has its second
        for name in args.only:
            path = FOLDER / f"{name}-{seed}.json"
            if not path.exists():
                print(f"{name}, seed {seed}", flush=True)
                files.write(path, json.dumps(measure(name, seed)).encode())
                files.write(FOLDER / "table.md", table().encode())
    files.write(FOLDER / "lengths.png", picture())
    print(table(), end="")


def measure(name: str, seed: int, n_steps: int = STEPS) -> Record:
    """Train one model, and test it at each length."""
    model = train(PositionConfig(**SCHEMES[name]), seed, n_steps)
    scores: Record = {}
    for length in LENGTHS:
        exact, symbols = accuracy(model, strings(random.Random(f"test {length}"), N_TESTS, length, length))
        scores |= {f"exact_{length}": exact, f"symbols_{length}": symbols}
    return scores


def strings(generator: random.Random, n: int, shortest: int, longest: int) -> list[list[int]]:
    """n strings of random symbols, every length in between equally likely."""
    return [generator.choices(SYMBOLS, k=generator.randint(shortest, longest)) for _ in range(n)]


def train(position: PositionConfig, seed: int, n_steps: int) -> Transformer:
    """Train with AdamW, a warm-up and a cosine."""
    torch.manual_seed(seed)
    # No string comes twice, so dropout has nothing to prevent.
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
    """(exact, symbols) in percent. A missing symbol is wrong; one too many spoils `exact`."""
    search = SearchConfig(kind="greedy", max_length_a=1.0, max_length_b=1)
    best = translate_ids(model, sources, search, batch_tokens=N_TESTS * (LENGTHS[-1] + 1))
    pairs = [(each[0].ids, source[::-1]) for each, source in zip(best, sources, strict=True)]
    exact = sum(ids == reference for ids, reference in pairs)
    right = sum(a == b for ids, reference in pairs for a, b in zip(ids, reference, strict=False))
    return 100 * exact / len(pairs), 100 * right / sum(len(reference) for _, reference in pairs)


def results(name: str) -> list[Record]:
    """The scores of a scheme so far."""
    paths = (FOLDER / f"{name}-{seed}.json" for seed in SEEDS)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def table() -> str:
    """Mean ± standard deviation over the seeds."""
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
    """The share of right symbols by length, a line for each scheme."""
    lines = {
        name: (LENGTHS, [statistics.fmean(each[f"symbols_{n}"] for each in scores) for n in LENGTHS])
        for name in SCHEMES
        if (scores := results(name))
    }
    return curve_figure(lines, "symbols in the string", "% in their place", "Reversing strings")


if __name__ == "__main__":
    sys.exit(main())

"""What length does to each position scheme: python scripts/compare_positions.py [--minutes 60]

The task is to reverse a string of symbols. Every scheme trains the same small model on strings of 1 to 20 symbols and
is then asked to reverse longer ones, 200 strings of each length. The symbols are random, so only a model that knows
where each one stands can be right.

Counted in percent: `exact`, strings reversed without a mistake and ended in time; `symbols`, places of the true answer
at which the right symbol stands. A symbol that is guessed is right 1 time in 30.

Results go to scripts/results/positions/: a file for each scheme and seed, table.md and lengths.png, the last two
written again after each trial. The same command goes on where it was stopped; a trial that was cut short is made
again from its beginning. Several at once, each with its own rows (--only), make use of several cores.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from dragoman.data.collate import Batch, collate
from dragoman.doors import Parser, open_door
from dragoman.model.position import PositionConfig
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.picture import curve_figure
from dragoman.search.search import SearchConfig
from dragoman.special import EOS
from dragoman.torch_engine import translate_ids
from dragoman.training.loss import projected_loss
from dragoman.training.schedule import learning_rate
from trials import SEEDS, Scores, Settings, Trials, markdown, mean_and_deviation, seeds_made, write

SYMBOLS = range(EOS + 1, EOS + 31)  # thirty ids, next to the special ones
LONGEST = 20  # in training
LENGTHS = (10, 20, 25, 30, 40, 60, 80)  # in testing
IN_TABLE = (20, 40, 80)
N_TESTS = 200  # of each length

MODEL: Settings = {"d_model": 64, "d_ff": 256, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 2}
MODEL |= {"dropout": 0.0}  # no string comes twice, so there is nothing to learn by heart
TRAINING: Settings = {"steps": 1500, "sentences": 64, "lr": 2e-3, "warmup_steps": 200}

SCHEMES: dict[str, Settings] = {
    "none": {"kind": "none"},
    "integer": {"kind": "integer"},
    "unit": {"kind": "unit", "length": LENGTHS[-1] + 2},  # with BOS or EOS, and one symbol too many
    "sinusoidal_100": {"kind": "sinusoidal", "base": 100.0},
    "sinusoidal_1000": {"kind": "sinusoidal", "base": 1000.0},
    "sinusoidal_10000": {"kind": "sinusoidal", "base": 10000.0},
    "learned": {"kind": "learned", "length": LENGTHS[-1] + 2},
    "rope": {"kind": "rope"},
    "t5": {"kind": "t5"},
    "transformer_xl": {"kind": "transformer_xl"},
    "alibi": {"kind": "alibi"},
}


def main() -> None:
    parser = Parser("compare_positions.py", __doc__ or "")
    parser.add_argument("--minutes", type=float, metavar="N", help="begin nothing that would end later")
    parser.add_argument("--only", nargs="+", metavar="SCHEME", help=f"of {', '.join(SCHEMES)}")
    default = Path(__file__).parent / "results" / "positions"
    parser.add_argument(
        "--results", type=Path, default=default, metavar="FOLDER", help="scripts/results/positions"
    )
    args = parser.parse()
    torch.set_num_threads(1)  # two make so small a model no faster; a second process is a better use of them
    trials = Trials(rows=rows(), folder=args.results, shown="exact_20")
    trials.make(
        lambda row, seed: measure(trials.rows[row], seed),
        lambda: tell(trials),
        minutes=args.minutes,
        only=args.only,
    )
    tell(trials)
    print(table(trials), end="")


def rows(training: Settings = TRAINING) -> dict[str, Settings]:
    """A row for each scheme; only `position` differs between them."""
    return {name: {"position": scheme, **MODEL, **training} for name, scheme in SCHEMES.items()}


def measure(settings: Settings, seed: int) -> Scores:
    """Train one model, and test it at each length."""
    model = train(settings, seed)
    scores: Scores = {}
    for length in LENGTHS:
        exact, symbols = accuracy(model, strings(random.Random(f"test {length}"), N_TESTS, length, length))
        scores |= {f"exact_{length}": exact, f"symbols_{length}": symbols}
    return scores


def strings(chance: random.Random, n: int, shortest: int, longest: int) -> list[list[int]]:
    """n strings of random symbols, every length in between equally likely."""
    return [chance.choices(SYMBOLS, k=chance.randint(shortest, longest)) for _ in range(n)]


def batches(seed: int, n_sentences: int) -> Iterator[Batch]:
    """The training set, without end: strings, and the same strings reversed."""
    chance = random.Random(seed)
    while True:
        sources = strings(chance, n_sentences, 1, LONGEST)
        yield collate(sources, [source[::-1] for source in sources])


def train(settings: Settings, seed: int) -> Transformer:
    """AdamW, a warm-up, then a cosine down to nothing: what train.py does, without what only long runs need."""
    torch.manual_seed(seed)
    config = ModelConfig(
        position=PositionConfig(**settings["position"]), **{key: settings[key] for key in MODEL}
    )
    n_ids = SYMBOLS.stop
    model = Transformer(config, src_vocab_size=n_ids, tgt_vocab_size=n_ids)
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.98), eps=1e-9, weight_decay=1e-4, fused=True
    )
    steps = range(1, settings["steps"] + 1)
    for step, batch in zip(steps, batches(seed, settings["sentences"]), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(
                "cosine",
                step,
                peak=settings["lr"],
                warmup_steps=settings["warmup_steps"],
                max_steps=settings["steps"],
            )
        real = ~batch.tgt_key_padding_mask
        memory = model.encode(batch.src, batch.src_key_padding_mask)
        states = model.states(batch.tgt_in, memory, batch.src_key_padding_mask)[real]  # (tokens, D)
        loss, _ = projected_loss(states, model.projection.weight, batch.tgt_out[real])
        optimizer.zero_grad()
        (loss / batch.n_tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def accuracy(model: Transformer, sources: Sequence[list[int]]) -> tuple[float, float]:
    """Percent of strings reversed exactly, and percent of symbols in their place."""
    # room for one symbol more than is right: whoever does not end is not exact
    search = SearchConfig(kind="greedy", max_length_a=1.0, max_length_b=1)
    found = translate_ids(model, sources, search, batch_tokens=N_TESTS * (LENGTHS[-1] + 1))
    return score([hypotheses[0].ids for hypotheses in found], [source[::-1] for source in sources])


def score(hypotheses: Sequence[Sequence[int]], references: Sequence[Sequence[int]]) -> tuple[float, float]:
    """(exact, symbols) in percent. What is missing from a hypothesis is wrong; what is too much spoils `exact`."""
    exact = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    right = sum(
        a == b for h, r in zip(hypotheses, references, strict=True) for a, b in zip(h, r, strict=False)
    )
    return 100 * exact / len(references), 100 * right / sum(map(len, references))


def tell(trials: Trials) -> None:
    """Write table.md and lengths.png from what there is."""
    trials.folder.mkdir(parents=True, exist_ok=True)
    write(trials.folder / "table.md", table(trials))
    write(trials.folder / "lengths.png", picture(trials))


def table(trials: Trials) -> str:
    """Mean ± standard deviation over the seeds, for the lengths in the table."""
    columns = [f"{kind}_{length}" for kind in ("exact", "symbols") for length in IN_TABLE]
    lines = []
    for row in trials.rows:
        found = trials.finished(row)
        cells = [mean_and_deviation([scores[column] for scores in found]) for column in columns]
        lines.append([row, *cells, seeds_made(len(found))])
    header = ["positions", *(column.replace("_", " at ") for column in columns), "seeds"]
    return (
        markdown(header, lines)
        + f"\nPercent, mean ± standard deviation of {len(SEEDS)} seeds; trained on 1 to {LONGEST} symbols, tested on "
        f"{N_TESTS} strings of each length.\n"
    )


def picture(trials: Trials) -> bytes:
    """The share of right symbols by length, a line for each scheme: the mean of its seeds so far."""
    lines = {}
    for row in trials.rows:
        if found := trials.finished(row):
            means = [sum(scores[f"symbols_{length}"] for scores in found) / len(found) for length in LENGTHS]
            lines[row] = (LENGTHS, means)
    return curve_figure(
        lines, "symbols in the string", "% in their place", f"Reversing strings, trained on 1 to {LONGEST}"
    )


if __name__ == "__main__":
    open_door(main)

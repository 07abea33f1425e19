"""How cost grows with corpus, length, model and batch: python scripts/bench_scale.py [--minutes 60]

Four things grow, one at a time: the pairs of a corpus (prepared from nothing, then trained on by a second run), the
length of sentences, the size of the model, the tokens of a batch. Beside every cost stands the law it should follow,
anchored at the smallest size: the operations or bytes that cost.py counts, linear, constant. What has grown more than
a quarter more than its law says is marked in the table: it grows faster than it should.

Each measurement is a process of its own (measured_cell.py), on the CPU and in fp32, made three times; the table has
medians and spread. With DRAGOMAN_DATA the corpus is subtitles (1.35 million pairs), else the phrasebook (27,000).

Results go to scripts/results/scale/: a file for each measurement, table.md and scale.png, the last two written again
after each. The same command goes on where it was stopped.
"""

import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dragoman.cost import Cost, Shape
from dragoman.data.sources import ROOT_VARIABLE
from dragoman.doors import Parser, open_door
from dragoman.errors import UserError
from dragoman.picture import Growth, growth_figure
from dragoman.training.loss import chunk_on
from measured_cell import DECODED_ROWS, VOCABULARY, config_of
from trials import Scores, Settings, Trials, markdown, write

ROOT = Path(__file__).resolve().parents[1]
SLACK = 1.25  # a cost may grow by this much more than its law says

CORPORA = {"subtitles": (10_000, 100_000, 1_350_000), "data/phrasebook": (1_000, 5_000, 25_000)}
LENGTHS = (16, 32, 64, 128, 256, 512)
SIZES = ("tiny", "small", "base", "big")
BATCHES = (256, 512, 1024, 2048, 4096, 8192)


class Law(NamedTuple):
    """What a cost should be proportional to."""

    name: str
    of: Callable[[Settings, Scores], float]


class Sweep(NamedTuple):
    """One thing that grows, and the costs that are watched: {score: (name, its law)}."""

    xlabel: str
    x: Callable[[Settings, Scores], float]
    costs: dict[str, tuple[str, Law]]


def shape_of(settings: Settings) -> Shape:
    """The batch of a measurement."""
    rows = settings["tokens"] // settings["length"]
    return Shape(rows, settings["length"], settings["length"], rows * settings["length"])


def cost_of(settings: Settings) -> Cost:
    """Its model on paper."""
    return Cost(config=config_of(settings["size"]), src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY)


def operations(settings: Settings, scores: Scores) -> float:
    """Of a training step, for a target token."""
    shape = shape_of(settings)
    return sum(cost_of(settings).flops(shape, training=True).values()) / shape.tokens


def memory(settings: Settings, scores: Scores) -> float:
    """Bytes of a training step. Gradients come as activations go: only the more of the two is there at once."""
    found = cost_of(settings).memory(shape_of(settings), average=False, width=4, chunk=chunk_on("cpu"))
    return sum(found.values()) - min(found["gradients"], found["activations"] + found["loss"])


def decoding(settings: Settings, scores: Scores) -> float:
    """Operations of a translation as long as its source."""
    length = settings["length"]
    return sum(cost_of(settings).flops(Shape(DECODED_ROWS, length, length, DECODED_ROWS * length)).values())


CONSTANT = Law("constant", lambda settings, scores: 1.0)
LINEAR = Law("linear", lambda settings, scores: scores["pairs"])
SORTING = Law("n log n", lambda settings, scores: scores["pairs"] * math.log(scores["pairs"]))
OPERATIONS, MEMORY = Law("its operations", operations), Law("its bytes on paper", memory)
STEP = {"train_ms": ("training, ms a token", OPERATIONS), "train_mb": ("memory, MB", MEMORY)}

SWEEPS = {
    "pairs": Sweep(
        "pairs in the corpus",
        lambda settings, scores: scores["pairs"],
        {
            "prepare_s": ("preparing, s", LINEAR),
            "prepare_mb": ("memory for it, MB", LINEAR),
            "cache_mb": ("cache on disk, MB", LINEAR),
            "start_s": ("second start to first step, s", CONSTANT),
            "import_s": ("of it importing, s", CONSTANT),
            "plan_s": ("planning an epoch, s", SORTING),
            "load_us": ("loading, µs a token", CONSTANT),
        },
    ),
    "length": Sweep(
        "tokens in a sentence",
        lambda settings, scores: settings["length"],
        STEP | {"decode_s": (f"translating {DECODED_ROWS}, s", Law("its operations", decoding))},
    ),
    "size": Sweep(
        "million operations for a token",
        lambda settings, scores: operations(settings, scores) / 1e6,
        STEP,
    ),
    "batch": Sweep("tokens in a batch", lambda settings, scores: settings["tokens"], STEP),
}


def main() -> None:
    parser = Parser("bench_scale.py", __doc__ or "")
    parser.add_argument("--minutes", type=float, metavar="N", help="begin nothing that would end later")
    parser.add_argument("--only", nargs="+", metavar="SWEEP", choices=SWEEPS, help=f"of {', '.join(SWEEPS)}")
    default = ROOT / "scripts" / "results" / "scale"
    parser.add_argument(
        "--results", type=Path, default=default, metavar="FOLDER", help="scripts/results/scale"
    )
    args = parser.parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # takes the measurement along
    trials = Trials(rows=rows(), folder=args.results, shown="cost")
    chosen = [row for row in trials.rows if not args.only or trials.rows[row]["sweep"] in args.only]
    trials.make(
        lambda row, seed: measure(trials.rows[row]),
        lambda: tell(trials),
        minutes=args.minutes,
        only=chosen,
    )
    tell(trials)
    print(table(trials), end="")


def rows(root: str | None = None) -> dict[str, Settings]:
    """Every measurement, by its name."""
    root = os.environ.get(ROOT_VARIABLE) if root is None else root
    corpus = next((name for name in CORPORA if (Path(root or ".") / name).is_dir()), "data/phrasebook")
    found: dict[str, Settings] = {}
    for n in LENGTHS:
        found[f"length_{n}"] = {"sweep": "length", "size": "small", "length": n, "tokens": 4096}
    for size in SIZES:
        found[f"size_{size}"] = {"sweep": "size", "size": size, "length": 32, "tokens": 1024}
    for n in BATCHES:
        found[f"batch_{n}"] = {"sweep": "batch", "size": "small", "length": 32, "tokens": n}
    for n in CORPORA[corpus]:  # last, they take longest
        found[f"pairs_{n}"] = {"sweep": "pairs", "corpus": corpus, "asked": n}
    return found


def measure(settings: Settings) -> Scores:
    """One measurement; `cost` is the one of its scores that is told at once."""
    if settings["sweep"] == "pairs":
        scores = corpus_scores(settings["corpus"], settings["asked"])
        return scores | {"cost": scores["start_s"]}
    scores = cell("train", size=settings["size"], length=settings["length"], tokens=settings["tokens"])
    if settings["sweep"] == "length":
        scores |= cell("decode", size=settings["size"], length=settings["length"])
    return scores | {"cost": scores["train_ms"]}


def corpus_scores(corpus: str, pairs: int) -> Scores:
    """Prepare a corpus of so many pairs in an empty place, then let another run begin with what is there."""
    with tempfile.TemporaryDirectory(prefix="dragoman-scale-") as name:
        taken, cache = f"{name}/corpus", f"{name}/cache"
        place = {"HF_DATASETS_CACHE": f"{name}/datasets"}
        scores = cell("take", place, corpus=corpus, pairs=pairs, folder=taken)
        scores |= cell("prepare", place, corpus=taken, cache=cache, run=f"{name}/first")
        start = time.perf_counter()
        run([sys.executable, "-c", "import dragoman.training.fit, dragoman.config"], place)
        scores["import_s"] = time.perf_counter() - start
        return scores | {"start_s": seconds_to_first_step(taken, cache, Path(name) / "second", place)}


def seconds_to_first_step(corpus: str, cache: str, run_dir: Path, place: dict[str, str]) -> float:
    """From the command to the end of the first optimizer step of train.py, by the clock in TensorBoard's file."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = [f"data.corpora=[{{path: {corpus}}}]", f"data.cache={cache}", f"run_dir={run_dir}", "trainer=cpu"]
    words += ["trainer.max_steps=1", "trainer.log_every=1", "trainer.validation_pairs=1", "trainer.samples=0"]
    start = time.time()
    run([sys.executable, "train.py", *words], place)
    events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    return float(events.Scalars("train/loss")[0].wall_time - start)


def cell(name: str, place: dict[str, str] | None = None, **options: str | int) -> Scores:
    """What measured_cell.py says of one measurement."""
    program = str(ROOT / "scripts" / "measured_cell.py")
    said = run([sys.executable, program, name, json.dumps(options)], place or {})
    return json.loads(said.splitlines()[-1])


def run(command: Sequence[str], place: dict[str, str]) -> str:
    """Its output. Raises UserError with its last words if it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | place, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise UserError(f"{' '.join(command[1:3])} left with {done.returncode}: {' '.join(last)}")
    return done.stdout


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """k of the y = c x^k that fits best."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def points(trials: Trials, sweep: str, score: str) -> tuple[list[str], list[float], list[float], list[float]]:
    """Rows measured so far, by rising x: their names, x, the median of the score, the law through the first."""
    _, x_of, costs = SWEEPS[sweep]
    law = costs[score][1]
    found = []
    for row, settings in trials.rows.items():
        if settings["sweep"] == sweep and (results := trials.finished(row)):
            y = statistics.median(result[score] for result in results)
            found.append((x_of(settings, results[0]), row, y, law.of(settings, results[0])))
    found.sort()
    scale = found[0][2] / found[0][3] if found else 1.0
    return (
        [row for _, row, _, _ in found],
        [x for x, _, _, _ in found],
        [y for _, _, y, _ in found],
        [scale * law for _, _, _, law in found],
    )


def excess(y: Sequence[float], law: Sequence[float]) -> float:
    """How many times the law's the growth from first to last is."""
    return (y[-1] / y[0]) / (law[-1] / law[0])


def tell(trials: Trials) -> None:
    """Write table.md and scale.png from what there is."""
    trials.folder.mkdir(parents=True, exist_ok=True)
    write(trials.folder / "table.md", table(trials))
    write(trials.folder / "scale.png", picture(trials))


def table(trials: Trials) -> str:
    """For each thing that grows: the costs, how they grow, and how their laws do."""
    cpu = platform.processor() or platform.machine()
    parts = [
        f"{os.cpu_count()} cores ({cpu}), torch {torch.__version__}, {torch.get_num_threads()} threads.\n"
    ]
    for name, sweep in SWEEPS.items():
        header = [sweep.xlabel, *(label for label, _ in sweep.costs.values()), "times measured"]
        parts.append(markdown(header, table_rows(trials, name)))
    parts.append(
        "Medians (least to most). `at the end`: growth from the first row to the last, divided by its law's; more than "
        f"{SLACK:g} is **too fast**, less is what does not grow, such as a start, having its share.\n"
    )
    return "\n".join(parts)


def table_rows(trials: Trials, sweep: str) -> Iterator[list[str]]:
    """A row for each size, then growth, law and verdict."""
    columns = {score: points(trials, sweep, score) for score in SWEEPS[sweep].costs}
    names, xs, _, _ = next(iter(columns.values()))
    for row, x in zip(names, xs, strict=True):
        results = trials.finished(row)
        cells = [spread([result[score] for result in results]) for score in columns]
        yield [f"{x:,.0f}", *cells, str(len(results))]
    if len(set(xs)) < 2:
        return
    laws = [law.name for _, law in SWEEPS[sweep].costs.values()]
    yield ["grows as x to the", *(f"{exponent(x, y):.2f}" for _, x, y, _ in columns.values()), ""]
    grows = [exponent(x, law) for _, x, _, law in columns.values()]
    yield ["law", *(f"{name}: {k:.2f}" for name, k in zip(laws, grows, strict=True)), ""]
    yield ["at the end", *(verdict(excess(y, law)) for _, _, y, law in columns.values()), ""]


def verdict(times: float) -> str:
    """In the table, marked where it grows too fast."""
    return f"**{times:.2f}: too fast**" if times > SLACK else f"{times:.2f}"


def spread(values: Sequence[float]) -> str:
    """'1.23 (1.20 to 1.31)': the median, and between what."""
    middle, *ends = (_short(value) for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({' to '.join(ends)})" if len(values) > 1 else middle


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def picture(trials: Trials) -> bytes:
    """A panel for each cost of which two sizes are measured."""
    panels = []
    for name, sweep in SWEEPS.items():
        for score, (label, law) in sweep.costs.items():
            _, x, y, expected = points(trials, name, score)
            if len(set(x)) > 1:
                note = f"x^{exponent(x, y):.2f}; law, {law.name}: x^{exponent(x, expected):.2f}"
                panels.append(Growth(label, sweep.xlabel, x, y, expected, note))
    return growth_figure(panels)


if __name__ == "__main__":
    open_door(main)

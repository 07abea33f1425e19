"""Decoding speed beside other programs: python scripts/bench/decoding.py [--cases greedy64 beam1 ...]

Every engine computes the same function: weights.py makes bundles of the weights that the peers fill their models with.
They translate the 1,000 test sentences of Multi30k, English to German, from text to text: greedy search and a beam of
4, 64 sentences at once and one after the other.

Each measurement is a process of its own (measure_decoding.py, or the peer's program). The programs take turns, so
that a machine that becomes slower becomes slower for all of them; the tables have medians and spread. A run in which
other processes used 4 % of the machine is repeated, up to three times, and marked where that did not help. The tables
go to runs/bench/decoding.md, too.

BENCH_HOME and BENCH_SCRIPTS name the weights and the peers' programs (scripts/README.md).
"""

import argparse
import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

from programs import DECODERS, Checkout, Program, add_options, checkouts, in_turns, peer_programs, run
from tables import Record, comparison, machine, save

from dragoman.commands.cli import Parser, check_at_least_one, command
from dragoman.errors import UserError

# name: (title, beam, sentences at once, sentences in all)
CASES = {
    "greedy64": ("Greedy, 64 sentences at once", 1, 64, 1000),
    "beam64": ("Beam of 4, 64 sentences at once", 4, 64, 1000),
    "greedy1": ("Greedy, one sentence after the other", 1, 1, 200),
    "beam1": ("Beam of 4, one sentence after the other", 4, 1, 200),
}
NOISE = 0.04  # share of the machine that other processes may use
PATIENCE = 300.0  # seconds that a program may take beside its runs


@command
def main(argv: list[str]) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES, help="(all four)")
    parser.add_argument("--seconds", type=float, default=10, metavar="S", help="longest run; a longer one is cut (10)")
    add_options(parser, DECODERS, rounds=3)
    args = parser.parse(argv)
    check_at_least_one(args, "rounds", "threads")
    if (home := os.environ.get("BENCH_HOME")) is None:
        raise UserError("BENCH_HOME is not set: without shared weights nothing can be compared (scripts/README.md)")
    runs: list[Record] = []
    texts: dict[str, list[str]] = {}  # of each case, from the first program
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        programs = []
        for checkout in checkouts(args.also):
            programs += engines(checkout, Path(home), Path(folder) / checkout.name)
        programs += peer_programs(DECODERS, "decode", args.peers)
        for record in in_turns(programs, args.cases, args.rounds, partial(measure, args)):
            if (own := record.pop("texts", None)) is not None:
                first = texts.setdefault(record["case"], own)
                record["same"] = statistics.fmean(a == b for a, b in zip(own, first, strict=False))
            runs.append(record)
            save("decoding", page(runs))
    print(page(runs), end="")


def engines(checkout: Checkout, home: Path, folder: Path) -> list[Program]:
    """The engines of a checkout, their bundles in `folder`."""
    data, script = home / "data", str(checkout.folder / "weights.py")
    command = [checkout.python, script, str(home / "work" / "torch-small.pt"), str(data), str(folder)]
    answer = run(Program(name=script, command=command), {}, PATIENCE)
    files = {"source": str(folder / "test.en"), "reference": str(data / "test.de")}
    return [
        checkout.program("measure_decoding.py", name, settings | files) for name, settings in answer["engines"].items()
    ]


def measure(args: argparse.Namespace, program: Program, case: str) -> Record:
    """Run one case. The number of tries, the noise and the beam of 4 are the defaults of the peers, too."""
    _, beam, batch, n_sentences = CASES[case]
    # A peer reads its settings from the environment.
    environment = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "BENCH_THREADS", "CT2_INTER"), str(args.threads)
    ) | {"BENCH_CASES": case, "BENCH_CASE_SECS": str(args.seconds), f"BENCH_LIMIT{batch}": str(n_sentences)}
    settings = {"beam": beam, "batch": batch, "sentences": n_sentences}
    settings |= {"seconds": args.seconds, "threads": args.threads}
    return run(program, environment, PATIENCE + 12 * args.seconds, **settings)


def page(runs: list[Record]) -> str:
    """The machine, and a table for each case."""
    columns = {
        "BLEU": lambda runs: f"{runs[-1]['bleu']:.2f}",
        "same sentences": lambda runs: f"{runs[-1]['same']:.1%}" if "same" in runs[-1] else "-",
        "sentences": lambda runs: f"{runs[-1]['sentences']:,}",
        "load s": lambda runs: f"{statistics.median(run['load_s'] for run in runs):.2f}",
        "peak MB": lambda runs: f"{max(run['peak_rss_mb'] for run in runs):,}",
        "rounds": lambda runs: f"{len(runs)}" + ", **noisy**" * any(run["noise"] >= NOISE for run in runs),
    }
    text = machine() + "\n"
    for case, (title, *_) in CASES.items():
        if of_case := [run for run in runs if run["case"] == case]:
            text += f"\n### {title}\n\n" + comparison(of_case, "sentences/s", speeds, columns)
    return text


def speeds(runs: list[Record]) -> list[float]:
    """Sentences a second of each run."""
    return [run["sent_s"] for run in runs]


if __name__ == "__main__":
    sys.exit(main())

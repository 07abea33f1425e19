"""Training speed beside other programs: python scripts/bench/training.py [--size base] [--precision 32 auto]

Each program trains the same model on the same text in the same pieces, about 4,096 target positions a batch, and is
measured from within: target tokens without padding, in three windows of some seconds after a warm-up. A window counts
only if other processes used less than 4 % of the machine. The programs take turns, so that a machine that becomes
slower becomes slower for all of them; the table has medians and spread, and goes to runs/bench/training_SIZE.md, too.

BENCH_HOME and BENCH_SCRIPTS name the data and the peers' programs (scripts/README.md). Without BENCH_HOME, Dragoman
trains alone, on the phrasebook.
"""

import argparse
import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

from programs import TRAINERS, Program, add_options, checkouts, in_turns, peer_programs, run
from tables import Record, comparison, machine, save, spread
from texts import copy_data

from dragoman.commands.cli import Parser, check_at_least_one, command

PATIENCE = 600.0  # seconds that a program may take beside its windows, of which there are twelve at most
FILES = ["train.en", "train.de", "val.en", "val.de"]


@command
def main(argv: list[str]) -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--size", default="small", choices=("small", "base"), help="of the model (small)")
    add("--precision", nargs="+", default=["auto"], choices=("32", "bf16", "auto"), help="of Dragoman (auto)")
    add("--everywhere", action="store_true", help="with dropout inside attention and feed-forward, as most peers")
    add("--window", type=float, default=20, metavar="S", help="seconds of a window (20)")
    add_options(parser, TRAINERS, rounds=2)
    args = parser.parse(argv)
    check_at_least_one(args, "rounds", "threads")
    runs: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        home = os.environ.get("BENCH_HOME")
        if home:
            copy_data(Path(home) / "data", Path(folder), FILES)
        else:
            print("BENCH_HOME is not set: measured on the phrasebook, without peers (scripts/README.md)")
        settings: Record = {"size": args.size, "threads": args.threads, "window": args.window}
        settings["data"] = folder if home else None
        if args.everywhere:
            settings["overrides"] = ["model.attention_dropout=0.1", "model.activation_dropout=0.1"]
        programs = [
            checkout.program("measure_training.py", precision, settings | {"precision": precision})
            for checkout in checkouts(args.also)
            for precision in args.precision
        ]
        if home:
            programs += peer_programs(TRAINERS, "train", args.peers)
        for record in in_turns(programs, [args.size], args.rounds, partial(measure, args)):
            runs.append(record)
            save(f"training_{args.size}", page(runs))
    print(page(runs), end="")


def measure(args: argparse.Namespace, program: Program, case: str) -> Record:
    """Run a program once. Warm-up, number of windows, noise and tokens of a batch are the defaults of all programs."""
    # A peer reads its settings from the environment.
    environment = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "BENCH_THREADS"), str(args.threads))
    environment |= {"BENCH_SIZE": case, "BENCH_WINDOW": str(args.window)}
    return run(program, environment, 12 * args.window + PATIENCE)


def page(runs: list[Record]) -> str:
    """The machine, and a row for each program, the fastest first."""
    columns = {
        "precision": lambda runs: runs[-1].get("precision", "-"),
        "ms a step": lambda runs: f"{statistics.median(run['step_ms'] for run in runs):,.0f}",
        "target positions": lambda runs: f"{runs[-1]['tgt_cells_per_step']:,}",
        "of them tokens": lambda runs: f"{runs[-1]['tgt_fill']:.0%}",
        "peak MB": lambda runs: f"{max(run['peak_rss_mb'] for run in runs):,}",
        "first step after s": lambda runs: spread([run["first_step_s"] for run in runs]),
        "rounds": lambda runs: f"{len(runs)}" + ", **noisy**" * any(run.get("noisy") for run in runs),
    }
    return f"{machine()}\n\n" + comparison(runs, "target tokens/s", windows, columns)


def windows(runs: list[Record]) -> list[float]:
    """Target tokens a second in each window."""
    return [speed for run in runs for speed in run["tgt_tok_s_windows"]]


if __name__ == "__main__":
    sys.exit(main())

"""Training speed beside other programs: python scripts/bench/training.py [--size base] [--precision 32 auto]

Each program trains the same model on the same text in the same pieces, about 4,096 target positions a batch, and is
measured from within: target tokens without padding, in windows of some seconds after a warm-up. A window counts only
if other processes used less than 4 % of the machine. The programs take turns, so that a machine that becomes slower
becomes slower for all of them; the table has medians and spread.

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
from tables import Record, by_program, machine, markdown, save, spread
from texts import copy_data

from dragoman.commands.cli import Parser, check_at_least_one, command

PATIENCE = 600.0  # seconds that a program may take beside its windows
FILES = ["train.en", "train.de", "val.en", "val.de"]


def parser() -> Parser:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--size", default="small", choices=("small", "base"), help="of the model (small)")
    add("--precision", nargs="+", default=["auto"], choices=("32", "bf16", "auto"), help="of Dragoman (auto)")
    add("--everywhere", action="store_true", help="with dropout inside attention and feed-forward, as most peers")
    add("--windows", type=int, default=3, metavar="N", help="quiet windows in each turn (3)")
    add("--window", type=float, default=20, metavar="S", help="seconds of a window (20)")
    add("--warm-up", type=float, default=20, metavar="S", help="seconds before the first window (20)")
    add("--max-tokens", type=int, default=4096, metavar="N", help="of a batch (4096)")
    add_options(parser, TRAINERS, rounds=2)
    return parser


@command
def main(argv: list[str]) -> None:
    args = parser().parse(argv)
    check_at_least_one(args, "rounds", "windows", "threads", "max-tokens")
    report: Record = {"machine": machine(), "runs": []}
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        data = peers_data(Path(folder))
        settings = {
            "size": args.size, "data": data, "max_tokens": args.max_tokens, "threads": args.threads,
            "everywhere": args.everywhere, "warm_up": args.warm_up, "window": args.window, "windows": args.windows,
            "max_windows": 4 * args.windows, "noise": args.noise,
        }  # fmt: skip
        programs = [
            checkout.program("measure_training.py", precision, settings | {"precision": precision})
            for checkout in checkouts(args.also)
            for precision in args.precision
        ]
        if data:
            programs += peer_programs(TRAINERS, "train", args.peers)
        for record in in_turns(programs, [args.size], args.rounds, partial(measure, args)):
            report["runs"].append(record)
            save(report, page, args.results, args.size)
    print(page(report), end="")


def peers_data(folder: Path) -> str | None:
    """The folder with a copy of the peers' data, if there is any."""
    if (home := os.environ.get("BENCH_HOME")) is None:
        print("BENCH_HOME is not set: measured on the phrasebook, without peers (scripts/README.md)")
        return None
    copy_data(Path(os.environ.get("BENCH_DATA", f"{home}/data")), folder, FILES)
    return str(folder)


def measure(args: argparse.Namespace, program: Program, case: str) -> Record:
    """Run a program once. A peer reads its settings from the environment."""
    environment = {
        "OMP_NUM_THREADS": str(args.threads), "MKL_NUM_THREADS": str(args.threads),
        "BENCH_SIZE": args.size, "BENCH_THREADS": str(args.threads), "BENCH_TOKENS": str(args.max_tokens),
        "BENCH_WARMUP": str(args.warm_up), "BENCH_WINDOW": str(args.window), "BENCH_WINDOWS": str(args.windows),
        "BENCH_MAX_WINDOWS": str(4 * args.windows), "BENCH_NOISE": str(args.noise),
    }  # fmt: skip
    return run(program, environment, args.warm_up + 4 * args.windows * args.window + PATIENCE)


def page(report: Record) -> str:
    """The machine, and a row for each program, the fastest first."""
    groups = by_program(report["runs"])
    rates = {name: [rate for run in runs for rate in run["tgt_tok_s_windows"]] for name, runs in groups.items()}
    speeds = {name: statistics.median(windows) for name, windows in rates.items()}
    peers = [speeds[name] for name, runs in groups.items() if runs[0]["is_peer"]]
    rows = []
    for name in sorted(groups, key=speeds.__getitem__, reverse=True):
        runs, last = groups[name], groups[name][-1]
        rows.append([
            name + (f" (= {last['precision']})" if name.endswith(" auto") else ""),
            spread(rates[name]),
            f"{speeds[name] / max(peers):.2f}" if peers else "-",
            f"{statistics.median(run['step_ms'] for run in runs):,.0f}",
            f"{last['tgt_cells_per_step']:,}",
            f"{last['tgt_fill']:.0%}",
            f"{max(run['peak_rss_mb'] for run in runs):,}",
            f"{statistics.median(run['first_step_s'] for run in runs):.1f}",
            f"{len(runs)} x {len(last['tgt_tok_s_windows'])}" + ", **noisy**" * any(run.get("noisy") for run in runs),
        ])  # fmt: skip
    header = [
        "program", "target tokens/s", "of the fastest peer", "ms a step", "target positions", "of them tokens",
        "peak MB", "first step after s", "rounds x windows",
    ]  # fmt: skip
    return f"{report['machine']}\n\n" + markdown(header, rows)


if __name__ == "__main__":
    sys.exit(main())

"""Training speed beside other programs: python scripts/bench/training.py

Counts target tokens, without padding, per second in three windows after a warm-up. The table goes to
runs/bench/training_SIZE.md. BENCH_HOME and BENCH_SCRIPTS name the data and the peers' programs (scripts/README.md).
Without BENCH_HOME, Dragoman trains alone, on the phrasebook. gpu.sh measures on a GPU.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

from programs import THREADS, TRAINERS, add_options, compare, copy_data, own_programs, peer_programs
from tables import Record, comparison, machine, spread

from dragoman.commands.cli import Parser, command

ROUNDS = 2
FILES = ["train.en", "train.de", "val.en", "val.de"]


@command
def main(argv: list[str]) -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("settings", nargs="*", metavar="key=value", help="more settings of Dragoman, as for train.py")
    add("--size", default="small", choices=("small", "base", "big"), help="of the model (small)")
    add("--precision", nargs="+", default=["auto"], choices=("32", "bf16", "auto"), help="of Dragoman (auto)")
    add("--window", type=float, default=20, metavar="S", help="seconds of a window (20)")
    add_options(parser, TRAINERS)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        if home := os.environ.get("BENCH_HOME"):
            copy_data(Path(home) / "data", Path(folder), FILES)
        else:
            print("BENCH_HOME is not set: measured on the phrasebook, without peers (scripts/README.md)")
        settings: Record = {"size": args.size, "threads": THREADS, "window": args.window, "overrides": args.settings}
        programs = []
        for precision in args.precision:
            of_precision = settings | {"precision": precision, "data": folder if home else None}
            programs += own_programs(args.also, "measure_training.py", precision, "training", of_precision)
        if home:
            of_peers = {"SIZE": args.size, "WINDOW": args.window}
            programs += peer_programs(TRAINERS, "train", args.peers, "training", of_peers)
        # Warm-up, number of windows and tokens of a batch are the defaults of all programs.
        compare(f"training_{args.size}", programs, ROUNDS, 3 * args.window + 600, page)  # seconds at most


def page(runs: list[Record]) -> str:
    """The machine, and a table of the programs, the fastest first."""
    columns = {
        "precision": lambda runs: runs[-1].get("precision", "-"),
        "ms a step": lambda runs: f"{statistics.median(run['step_ms'] for run in runs):,.0f}",
        "target positions": lambda runs: f"{runs[-1]['tgt_cells_per_step']:,}",
        "of them tokens": lambda runs: f"{runs[-1]['tgt_fill']:.0%}",
        "first step after s": lambda runs: spread([run["first_step_s"] for run in runs]),
    }
    if any(run.get("gpu") for run in runs):
        columns["MFU; memory; GPU"] = lambda runs: runs[-1]["gpu"]
    return f"{machine()}\n\n" + comparison(runs, "target tokens/s", lambda run: run["tgt_tok_s_windows"], columns)


if __name__ == "__main__":
    sys.exit(main())

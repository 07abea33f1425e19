"""Decoding speed beside other programs: python scripts/bench/decoding.py

The 1,000 test sentences of Multi30k, English to German, from text to text. weights.py makes bundles of the weights that
the peers fill their models with. The tables go to runs/bench/decoding.md. BENCH_HOME and BENCH_SCRIPTS name the weights
and the peers' programs (scripts/README.md).
"""

import os
import statistics
import sys
import tempfile
from functools import partial

from programs import DECODERS, ROOT, THREADS, Program, add_options, compare, own_programs, peer_programs, run
from tables import Columns, Record, comparison, machine

from dragoman.commands.cli import Parser, command
from dragoman.errors import UserError

# name: (title, beam, sentences at once, sentences in all)
CASES = {
    "greedy64": ("Greedy, 64 sentences at once", 1, 64, 1000),
    "beam64": ("Beam of 4, 64 sentences at once", 4, 64, 1000),
    "greedy1": ("Greedy, one sentence after the other", 1, 1, 200),
    "beam1": ("Beam of 4, one sentence after the other", 4, 1, 200),
}
ROUNDS = 3
PATIENCE = 300.0  # seconds that a program may take beside its runs


@command
def main(argv: list[str]) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES, help="(all four)")
    parser.add_argument("--seconds", type=float, default=10, metavar="S", help="longest run; a longer one is cut (10)")
    add_options(parser, DECODERS)
    args = parser.parse_args(argv)
    if (home := os.environ.get("BENCH_HOME")) is None:
        raise UserError("BENCH_HOME is not set: without shared weights nothing can be compared (scripts/README.md)")
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        # In a process of its own, because no torch is imported here (programs.py).
        command = [sys.executable, str(ROOT / "scripts/bench/weights.py"), home, folder]
        engines = run(Program(name="weights.py", command=command), PATIENCE)["engines"]
        files: Record = {"source": f"{folder}/test.en", "reference": f"{home}/data/test.de"}
        programs = []
        for case in args.cases:
            _, beam, batch, n = CASES[case]
            sizes = {"beam": beam, "batch": batch, "sentences": n, "seconds": args.seconds, "threads": THREADS}
            for name, engine in engines.items():
                programs += own_programs(args.also, "measure_decoding.py", name, case, files | sizes | engine)
            # The beam of 4 is the peers' default, too.
            of_peers = {"CASES": case, "CASE_SECS": args.seconds, f"LIMIT{batch}": n}
            programs += peer_programs(DECODERS, "decode", args.peers, case, of_peers)
        compare("decoding", programs, ROUNDS, 12 * args.seconds + PATIENCE, page)


def page(runs: list[Record]) -> str:
    """The machine, and a table for each case."""
    text = machine() + "\n"
    for case, (title, *_) in CASES.items():
        of_case = [run for run in runs if run["case"] == case]
        if of_case:
            columns: Columns = {
                "BLEU": lambda runs: f"{runs[-1]['bleu']:.2f}",
                "same sentences": partial(same, of_case[0].get("texts", [])),
                "sentences": lambda runs: f"{runs[-1]['sentences']:,}",
            }
            text += f"\n### {title}\n\n" + comparison(of_case, "sentences/s", lambda run: [run["sent_s"]], columns)
    return text


def same(texts: list[str], runs: list[Record]) -> str:
    """Share of translations equal to those of the first program; '-' for peers."""
    own = runs[-1].get("texts")
    return f"{statistics.fmean(a == b for a, b in zip(own, texts, strict=False)):.1%}" if own else "-"


if __name__ == "__main__":
    sys.exit(main())

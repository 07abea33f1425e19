"""Decoding speed beside other programs: python scripts/bench/decoding.py [--cases greedy64 beam1 ...]

Every engine computes the same function: weights.py makes bundles of the weights that the peers fill their models with.
They translate the 1,000 test sentences of Multi30k, English to German, from text to text: greedy search and a beam of
4, 64 sentences at once and one after the other.

Each measurement is a process of its own (measure_decoding.py, or the peer's program). The programs take turns, so
that a machine that becomes slower becomes slower for all of them; the tables have medians and spread. A run in which
other processes used 4 % of the machine is repeated, up to three times, and marked where that did not help.

BENCH_HOME and BENCH_SCRIPTS name the weights and the peers' programs (scripts/README.md).
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from programs import DECODERS, Checkout, Program, add_options, checkouts, in_turns, peer_programs, run
from tables import Record, by_program, machine, markdown, save, spread

from dragoman.commands.cli import Parser, check_at_least_one, command
from dragoman.errors import UserError, check_choice

BEAM = 4
# name: (title, beam, sentences at once, sentences in all)
CASES = {
    "greedy64": ("Greedy, 64 sentences at once", 1, 64, 1000),
    "beam64": (f"Beam of {BEAM}, 64 sentences at once", BEAM, 64, 1000),
    "greedy1": ("Greedy, one sentence after the other", 1, 1, 200),
    "beam1": (f"Beam of {BEAM}, one sentence after the other", BEAM, 1, 200),
}
TRIES = 3
PATIENCE = 300.0  # seconds that a program may take beside its runs


def parser() -> Parser:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--size", default="small", help="of the shared weights torch-SIZE.pt (small)")
    add("--cases", nargs="+", default=list(CASES), choices=CASES, help="(all four)")
    add("--engines", nargs="+", metavar="ENGINE", help="of Dragoman, as 'torch fp32' (all)")
    add("--seconds", type=float, default=10, metavar="S", help="longest run; a longer one is cut (10)")
    add_options(parser, DECODERS, rounds=3)
    return parser


@command
def main(argv: list[str]) -> None:
    args = parser().parse(argv)
    check_at_least_one(args, "rounds", "threads")
    if (home := os.environ.get("BENCH_HOME")) is None:
        raise UserError("BENCH_HOME is not set: without shared weights nothing can be compared (scripts/README.md)")
    data = Path(os.environ.get("BENCH_DATA", f"{home}/data"))
    weights = Path(os.environ.get("BENCH_WORK", f"{home}/work")) / f"torch-{args.size}.pt"
    report: Record = {"machine": machine(), "noise": args.noise, "runs": []}
    texts: dict[str, list[str]] = {}  # of each case, from the first program
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        programs = []
        for checkout in checkouts(args.also):
            programs += engines(checkout, weights, data, Path(folder) / checkout.name, args.engines)
        programs += peer_programs(DECODERS, "decode", args.peers)
        for record in in_turns(programs, args.cases, args.rounds, partial(measure, args)):
            if (own := record.pop("texts", None)) is not None:
                first = texts.setdefault(record["case"], own)
                record["same"] = statistics.fmean(a == b for a, b in zip(own, first, strict=False))
            report["runs"].append(record)
            save(report, page, args.results, args.size)
    print(page(report), end="")


def engines(
    checkout: Checkout, weights: Path, data: Path, folder: Path, selected: Sequence[str] | None
) -> list[Program]:
    """The engines of a checkout, their bundles in `folder`; prints why one is missing."""
    script = str(checkout.folder / "weights.py")
    command = [checkout.python, script, str(weights), str(data), str(folder)]
    answer = run(Program(name=script, command=command), {}, PATIENCE)
    for name, reason in answer["without"].items():
        print(f"without {checkout.name} {name}: {reason}")
    for name in selected or ():
        check_choice("--engines", name, answer["engines"])
    files = {"source": str(folder / "test.en"), "reference": str(data / "test.de")}
    return [
        checkout.program("measure_decoding.py", name, settings | files)
        for name, settings in answer["engines"].items()
        if name in (selected or answer["engines"])
    ]


def measure(args: argparse.Namespace, program: Program, case: str) -> Record:
    """Run one case. A peer reads its settings from the environment."""
    _, beam, batch, n_sentences = CASES[case]
    threads = str(args.threads)
    environment = {
        "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "BENCH_THREADS": threads, "CT2_INTER": threads,
        "BENCH_SIZE": args.size, "BENCH_CASES": case, "BENCH_BEAM": str(BEAM), "BENCH_RUNS": "1",
        "BENCH_TRIES": str(TRIES), "BENCH_NOISE": str(args.noise), "BENCH_CASE_SECS": str(args.seconds),
        f"BENCH_LIMIT{batch}": str(n_sentences),
    }  # fmt: skip
    return run(
        program, environment, PATIENCE + (TRIES + 3) * 2 * args.seconds, beam=beam, batch=batch,
        sentences=n_sentences, seconds=args.seconds, tries=TRIES, noise=args.noise, threads=args.threads,
    )  # fmt: skip


def page(report: Record) -> str:
    """The machine, and a table for each case."""
    text = report["machine"] + "\n"
    for case, (title, *_) in CASES.items():
        if runs := [run for run in report["runs"] if run["case"] == case]:
            text += f"\n### {title}\n\n" + table(runs, report["noise"])
    return text


def table(records: Sequence[Record], noise: float) -> str:
    """A row for each program, the fastest first, and its speed beside that of the fastest peer with torch."""
    groups = by_program(records)
    speeds = {name: statistics.median(run["sent_s"] for run in runs) for name, runs in groups.items()}
    peers = [speeds[name] for name in groups if groups[name][0]["is_peer"] and not name.startswith("ct2-")]
    rows = []
    for name in sorted(groups, key=speeds.__getitem__, reverse=True):
        runs, last = groups[name], groups[name][-1]
        rows.append([
            name,
            spread([run["sent_s"] for run in runs]),
            f"{speeds[name] / max(peers):.2f}" if peers else "-",
            f"{last['bleu']:.2f}",
            f"{last['same']:.1%}" if "same" in last else "-",
            f"{last['sentences']:,}",
            f"{statistics.median(run['load_s'] for run in runs):.2f}",
            f"{max(run['peak_rss_mb'] for run in runs):,}",
            f"{len(runs)}" + ", **noisy**" * any(run["noise"] >= noise for run in runs),
        ])  # fmt: skip
    header = [
        "program", "sentences/s", "of the fastest torch peer", "BLEU", "same sentences", "sentences", "load s",
        "peak MB", "rounds",
    ]  # fmt: skip
    return markdown(header, rows)


if __name__ == "__main__":
    sys.exit(main())

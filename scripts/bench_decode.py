"""How fast Dragoman translates, beside its peers: python scripts/bench_decode.py [--cases greedy64 beam1 ...]

Every engine computes the same function: the peers' programs fill their models with the weights that their
bench_train_torch.py trained, and same_weights.py makes bundles of those for Dragoman's engines. They translate the
1,000 test sentences of Multi30k, English to German, from text to text; four cases: greedy search and a beam of 4, 64
sentences at once and one after the other.

Each measurement is a process of its own (measured_search.py, or the peer's program), which loads, warms up, and times
one case. The programs take turns, round after round, so that a machine that becomes slower becomes slower for all of
them; what is compared is medians, and the spread is shown. A run in which other processes used 4 % of the machine is
made again, up to three times, and marked where that did not help.

What the peers need lies outside of this project: scripts/README.md tells how to get it. Where one is not there, a line
says so, and the rest is measured. --results FOLDER keeps everything, as a page and as JSON.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_report import heading, keep, machine
from dragoman.doors import Parser, open_door
from dragoman.errors import UserError, suggest
from peers import DECODERS, Program, Record, peers_here, run
from trials import markdown

HERE = Path(__file__).resolve().parent
BEAM = 4
CASES = {"greedy64": (1, 64), "beam64": (BEAM, 64), "greedy1": (1, 1), "beam1": (BEAM, 1)}  # beam, batch
TITLES = {
    "greedy64": "Greedy, 64 sentences at once",
    "beam64": f"Beam of {BEAM}, 64 sentences at once",
    "greedy1": "Greedy, one sentence after the other",
    "beam1": f"Beam of {BEAM}, one sentence after the other",
}
N_SENTENCES = {64: 1000, 1: 200}
TRIES = 3
PATIENCE = 300.0  # seconds that a program may take beside its runs


def main() -> None:
    args = arguments()
    # takes the running program along
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    home = os.environ.get("BENCH_HOME")
    if home is None:
        print("BENCH_HOME is not set: without weights that all share nothing is measured (scripts/README.md)")
        return
    data = Path(os.environ.get("BENCH_DATA", str(Path(home) / "data")))
    weights = Path(os.environ.get("BENCH_WORK", str(Path(home) / "work"))) / f"torch-{args.size}.pt"
    report: Record = {"machine": machine(), "settings": settings(args), "runs": []}
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        mine = engines(weights, data, Path(folder), args.engines)
        programs = [*mine, *peers_here(args.peers, os.environ, decoders=True)]
        take_turns(programs, Path(folder), data, args, report)
    print(page(report), end="")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    n_cores = os.cpu_count() or 1
    parser = Parser("bench_decode.py", __doc__ or "")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--size", default="small", help="of the shared weights: torch-SIZE.pt (default: small)")
    add("--cases", nargs="+", default=list(CASES), choices=CASES, help="default: all four")
    add("--engines", nargs="+", metavar="ENGINE", help="of Dragoman, as 'torch fp32' (default: all here)")
    add("--peers", nargs="*", metavar="PEER", help=f"of {', '.join(DECODERS)} (none: --peers alone)")
    add("--rounds", type=int, default=3, metavar="N", help="turns of each program (default: 3)")
    add("--seconds", type=float, default=10, metavar="S", help="of a run, or it is cut (default: 10)")
    add("--noise", type=float, default=0.04, metavar="X", help="share others may use (default: 0.04)")
    add("--threads", type=int, default=n_cores, metavar="N", help=f"default: all {n_cores} cores")
    add("--results", type=Path, metavar="FOLDER", help="keep what was found here")
    args = parser.parse(argv)
    for key in ("rounds", "seconds", "threads", "noise"):
        if getattr(args, key) <= 0:
            raise UserError(f"--{key} {getattr(args, key)}: must be more than 0")
    for name in args.peers or ():
        if name not in DECODERS:
            raise UserError(
                f"there is no peer '{name}'{suggest(name, DECODERS)}; there are {', '.join(DECODERS)}"
            )
    return args


def engines(weights: Path, data: Path, folder: Path, wanted: Sequence[str] | None) -> list[Program]:
    """What Dragoman can translate with here, its bundles in `folder`; of each other engine, a line why not."""
    command = [sys.executable, str(HERE / "same_weights.py"), str(weights), str(data), str(folder)]
    found = run(Program(name="same_weights.py", command=command, is_peer=False), {}, PATIENCE)
    for name, why in found["without"].items():
        print(f"without Dragoman {name}: {why}")
    known = found["engines"]
    for name in wanted or ():
        if name not in known:
            raise UserError(
                f"there is no engine '{name}' here{suggest(name, known)}; there are {', '.join(known)}"
            )
    return [
        Program(
            name=f"Dragoman {name}",
            command=[sys.executable, str(HERE / "measured_search.py"), json.dumps(asked)],
            is_peer=False,
        )
        for name, asked in known.items()
        if name in (wanted or known)
    ]


def take_turns(
    programs: Sequence[Program], folder: Path, data: Path, args: argparse.Namespace, report: Record
) -> None:
    """Every program in every case, then all of it again; a peer that fails is not asked again."""
    failed: set[str] = set()
    texts: dict[str, list[str]] = {}  # by case: those that the first engine wrote
    for turn in range(1, args.rounds + 1):
        for case in args.cases:
            for program in programs:
                if program.name in failed:
                    continue
                print(f"round {turn} of {args.rounds}, {case}: {program.name}", file=sys.stderr, flush=True)
                try:
                    found = measure(program, case, folder, data, args)
                except UserError as error:
                    if not program.is_peer:
                        raise
                    print(f"without {program.name} from here on: {error}")
                    failed.add(program.name)
                    continue
                if (mine := found.pop("texts", None)) is not None:
                    first = texts.setdefault(case, mine)
                    found["same"] = statistics.fmean(a == b for a, b in zip(mine, first, strict=False))
                about = {"program": program.name, "is_peer": program.is_peer, "round": turn, "case": case}
                report["runs"].append({**found, **about})
                keep(report, page, args.results, args.size)


def measure(program: Program, case: str, folder: Path, data: Path, args: argparse.Namespace) -> Record:
    """One run of one case. Raises UserError where it found nothing."""
    beam, batch = CASES[case]
    if not program.is_peer:
        *command, asked = program.command
        more = {
            "source": str(folder / "test.en"), "reference": str(data / "test.de"), "beam": beam, "batch": batch,
            "sentences": N_SENTENCES[batch], "seconds": args.seconds, "tries": TRIES, "noise": args.noise,
            "threads": args.threads,
        }  # fmt: skip
        command.append(json.dumps(json.loads(asked) | more))
        program = Program(name=program.name, command=command, is_peer=False)
    return run(program, told(case, args), PATIENCE + (TRIES + 3) * 2 * args.seconds)


def told(case: str, args: argparse.Namespace) -> dict[str, str]:
    """The settings as the peers' programs read them."""
    threads = str(args.threads)
    return {
        "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "BENCH_THREADS": threads, "CT2_INTER": threads,
        "BENCH_SIZE": args.size, "BENCH_CASES": case, "BENCH_BEAM": str(BEAM), "BENCH_RUNS": "1",
        "BENCH_TRIES": str(TRIES), "BENCH_NOISE": str(args.noise), "BENCH_CASE_SECS": str(args.seconds),
        "BENCH_LIMIT64": str(N_SENTENCES[64]), "BENCH_LIMIT1": str(N_SENTENCES[1]),
    }  # fmt: skip


def settings(args: argparse.Namespace) -> Record:
    return {key: value for key, value in vars(args).items() if key != "results"}


def page(report: Record) -> str:
    """Everything, for people."""
    text = heading(report)
    for case, title in TITLES.items():
        if runs := [found for found in report["runs"] if found["case"] == case]:
            text += f"\n### {title}\n\n" + table(runs, report["settings"]["noise"])
    return text


def table(runs: Sequence[Record], noise: float) -> str:
    """A row for each program, the fastest first, and what it is of the fastest peer that computes with torch."""
    by_name: dict[str, list[Record]] = {}
    for found in runs:
        by_name.setdefault(found["program"], []).append(found)
    speeds = {name: statistics.median(found["sent_s"] for found in of) for name, of in by_name.items()}
    peers = [speeds[name] for name, of in by_name.items() if of[0]["is_peer"] and not name.startswith("ct2-")]
    rows = [
        row(name, by_name[name], speeds[name] / max(peers) if peers else None, noise)
        for name in sorted(by_name, key=lambda name: -speeds[name])
    ]
    header = [
        "program", "sentences/s", "of the fastest torch peer", "output tokens/s", "BLEU", "same sentences",
        "sentences", "load s", "peak MB", "rounds",
    ]  # fmt: skip
    return markdown(header, rows)


def row(name: str, runs: Sequence[Mapping[str, float]], ratio: float | None, noise: float) -> list[str]:
    last = runs[-1]
    noisy = ", **noisy**" if any(found["noise"] >= noise for found in runs) else ""
    return [
        name,
        spread([found["sent_s"] for found in runs]),
        "-" if ratio is None else f"{ratio:.2f}",
        spread([found["tok_s"] for found in runs]),
        f"{last['bleu']:.2f}",
        f"{last['same']:.1%}" if "same" in last else "-",
        f"{last['sentences']:,}",
        f"{statistics.median(found['load_s'] for found in runs):.2f}",
        f"{max(found['peak_rss_mb'] for found in runs):,}",
        f"{len(runs)}{noisy}",
    ]


def spread(values: Sequence[float]) -> str:
    """'96.3 (95.0-97.1)': the median, the least and the most; large ones without decimals."""
    digits = 0 if statistics.median(values) >= 1000 else 1
    middle, least, most = (f"{f(values):,.{digits}f}" for f in (statistics.median, min, max))
    return f"{middle} ({least}-{most})"


if __name__ == "__main__":
    open_door(main)

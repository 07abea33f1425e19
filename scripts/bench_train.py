"""How fast Dragoman trains, beside its peers: python scripts/bench_train.py [--size base] [--precision 32 auto]

Each program trains the same model on the same text in the same pieces, about 4,096 target positions a batch, and is
measured from within: target tokens without padding in windows of some seconds after a warm-up. A window counts only
if other processes used less than 4 % of the machine meanwhile. The programs take turns, round after round, so that a
machine that becomes slower becomes slower for all of them; what is compared is medians, and the spread is shown.

Dragoman is measured by measured_fit.py, through the same `fit` that train.py calls. The peers have programs and
environments of their own, outside of this project: scripts/README.md tells how to get them. Where one is not there, a
line says so, and the rest is measured.

Afterwards a profile: which operators the time of a step goes to, and how near its matrix products come to the most
that this processor does, measured in the same process. --results FOLDER keeps everything, as a page and as JSON.

--same-training measures no speed: it shows that Dragoman's way of training gives the losses of a plain one
(same_training.py).
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench_report import heading, keep, machine
from dragoman.doors import Parser, open_door
from dragoman.errors import UserError, suggest
from peers import PEERS, Program, Record, peers_here, run
from plain_text import plain_data
from trials import markdown

HERE = Path(__file__).resolve().parent
SIZES, PRECISIONS = ("small", "base"), ("32", "bf16", "auto")
PATIENCE = 600.0  # seconds that a program may take to come to its first step and to end, beside its windows
TOP = 14  # operators in the profile's table


def main() -> None:
    args = arguments()
    # takes the running program along
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    home = os.environ.get("BENCH_HOME")
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        data = None
        if home is None:
            print("BENCH_HOME is not set: measured on the phrasebook, and without peers (scripts/README.md)")
        else:
            theirs = Path(os.environ.get("BENCH_DATA", str(Path(home) / "data")))
            data = str(plain_data(theirs, Path(folder)))
        if args.same_training:
            import same_training  # which loads torch

            same_training.compare(args.size, args.precision[0], data, args.steps, args.results)
        else:
            compare(args, data)


def compare(args: argparse.Namespace, data: str | None) -> None:
    """Take turns, then profile; print everything, and keep it."""
    mine = [dragoman(precision, args, data) for precision in args.precision]
    if args.everywhere:
        mine += [dragoman(precision, args, data, everywhere=True) for precision in args.precision]
    report: Record = {"machine": machine(), "settings": settings(args), "runs": [], "profiles": []}
    if not args.profile_only:
        take_turns([*mine, *peers_here(args.peers, os.environ)], args, report)
    for precision in args.precision:
        program = dragoman(precision, args, data, profile=True)
        report["profiles"].append({"program": program.name, **measure(program, args)})
    keep(report, page, args.results, args.size)
    print(page(report), end="")


def take_turns(programs: Sequence[Program], args: argparse.Namespace, report: Record) -> None:
    """Every program once, then every program again; a peer that fails is not asked again."""
    failed = set()
    for turn in range(1, args.rounds + 1):
        for program in programs:
            if program.name in failed:
                continue
            print(f"round {turn} of {args.rounds}: {program.name}", file=sys.stderr, flush=True)
            try:
                found = measure(program, args)
            except UserError as error:
                if not program.is_peer:
                    raise
                print(f"without {program.name} from here on: {error}")
                failed.add(program.name)
                continue
            report["runs"].append(
                {"program": program.name, "is_peer": program.is_peer, "round": turn, **found}
            )
            keep(report, page, args.results, args.size)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser("bench_train.py", __doc__ or "")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--size", default="small", choices=SIZES, help="of the model (default: small)")
    parser.add_argument(
        "--precision", nargs="+", default=["auto"], choices=PRECISIONS, help="of Dragoman (default: auto)"
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        metavar="PEER",
        help=f"of {', '.join(PEERS)} (default: as shipped; none: --peers alone)",
    )
    parser.add_argument(
        "--rounds", type=int, default=2, metavar="N", help="turns of each program (default: 2)"
    )
    parser.add_argument(
        "--windows", type=int, default=3, metavar="N", help="quiet windows a turn (default: 3)"
    )
    parser.add_argument(
        "--window", type=float, default=20, metavar="S", help="seconds of a window (default: 20)"
    )
    parser.add_argument(
        "--warm-up", type=float, default=20, metavar="S", help="seconds before them (default: 20)"
    )
    parser.add_argument(
        "--noise", type=float, default=0.04, metavar="X", help="share others may use (default: 0.04)"
    )
    n_cores = os.cpu_count() or 1
    parser.add_argument(
        "--threads", type=int, default=n_cores, metavar="N", help=f"default: all {n_cores} cores"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=4096, metavar="N", help="of a batch (default: 4096)"
    )
    parser.add_argument(
        "--everywhere", action="store_true",
        help="measure Dragoman also with dropout inside attention and feed-forward, where some peers have it",
    )  # fmt: skip
    parser.add_argument("--profile-only", action="store_true", help="no rounds, only the profile")
    parser.add_argument("--same-training", action="store_true", help="compare losses instead of speeds")
    parser.add_argument(
        "--steps", type=int, default=300, metavar="N", help="of --same-training (default: 300)"
    )
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="keep what was found here")
    args = parser.parse(argv)
    for key in ("rounds", "windows", "window", "threads", "max_tokens", "steps", "noise"):
        if getattr(args, key) <= 0:
            raise UserError(f"--{key.replace('_', '-')} {getattr(args, key)}: must be more than 0")
    for name in args.peers or ():
        if name not in PEERS:
            raise UserError(f"there is no peer '{name}'{suggest(name, PEERS)}; there are {', '.join(PEERS)}")
    return args


def dragoman(
    precision: str,
    args: argparse.Namespace,
    data: str | None,
    *,
    everywhere: bool = False,
    profile: bool = False,
) -> Program:
    """measured_fit.py under these settings."""
    asked = {
        "size": args.size, "precision": precision, "everywhere": everywhere, "data": data,
        "max_tokens": args.max_tokens, "threads": args.threads, "warm_up": args.warm_up, "window": args.window,
        "windows": args.windows, "max_windows": 4 * args.windows, "noise": args.noise, "profile": profile,
    }  # fmt: skip
    name = f"Dragoman {precision}" + (", dropout everywhere" if everywhere else "")
    command = [sys.executable, str(HERE / "measured_fit.py"), json.dumps(asked)]
    return Program(name=name, command=command, is_peer=False)


def told(args: argparse.Namespace) -> dict[str, str]:
    """The settings as the peers' programs read them."""
    return {
        "OMP_NUM_THREADS": str(args.threads), "MKL_NUM_THREADS": str(args.threads),
        "BENCH_SIZE": args.size, "BENCH_THREADS": str(args.threads), "BENCH_TOKENS": str(args.max_tokens),
        "BENCH_WARMUP": str(args.warm_up), "BENCH_WINDOW": str(args.window), "BENCH_WINDOWS": str(args.windows),
        "BENCH_MAX_WINDOWS": str(4 * args.windows), "BENCH_NOISE": str(args.noise),
    }  # fmt: skip


def measure(program: Program, args: argparse.Namespace) -> Record:
    """What it found. Raises UserError where it found nothing."""
    return run(program, told(args), args.warm_up + 4 * args.windows * args.window + PATIENCE)


def settings(args: argparse.Namespace) -> Record:
    return {
        key: value for key, value in vars(args).items() if key not in ("results", "same_training", "steps")
    }


def page(report: Record) -> str:
    """Everything, for people."""
    text = heading(report) + "\n"
    if report["runs"]:
        text += table(report["runs"]) + "\n"
    return text + "\n".join(profile_page(profile) for profile in report["profiles"])


def table(runs: Sequence[Record]) -> str:
    """A row for each program, the fastest first."""
    by_name: dict[str, list[Record]] = {}
    for found in runs:
        by_name.setdefault(found["program"], []).append(found)
    speeds = {name: speed(of) for name, of in by_name.items()}
    peers = [speeds[name] for name, of in by_name.items() if of[0]["is_peer"]]
    rows = []
    for name in sorted(by_name, key=lambda name: -speeds[name]):
        of = by_name[name]
        last = of[-1]
        noisy = ", **noisy**" if any(found.get("noisy") for found in of) else ""
        rows.append([
            name + (f" (= {last['precision']})" if name.startswith("Dragoman auto") else ""),
            spread([window for found in of for window in found["tgt_tok_s_windows"]]),
            f"{speeds[name] / max(peers):.2f}" if peers else "-",
            f"{statistics.median(found['step_ms'] for found in of):,.0f}",
            f"{last['tgt_cells_per_step']:,}",
            f"{last['tgt_fill']:.0%}",
            f"{statistics.median(found['sys_share'] for found in of):.0%}",
            f"{max(found['peak_rss_mb'] for found in of):,}",
            f"{statistics.median(found['first_step_s'] for found in of):.1f}",
            f"{len(of)} x {len(last['tgt_tok_s_windows'])}{noisy}",
        ])  # fmt: skip
    header = [
        "program", "target tokens/s", "of the fastest peer", "ms a step", "target positions", "of them tokens",
        "in the kernel", "peak MB", "first step after s", "rounds x windows",
    ]  # fmt: skip
    return markdown(header, rows)


def speed(runs: Sequence[Record]) -> float:
    return statistics.median(window for found in runs for window in found["tgt_tok_s_windows"])


def spread(values: Sequence[float]) -> str:
    """'2,815 (2,304-3,101)': the median, the least and the most."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}-{max(values):,.0f})"


def profile_page(profile: Record) -> str:
    """Where the time of a step goes, and how near its products come to the ceiling."""
    width = "bf16" if profile["precision"] == "bf16" else "fp32"
    ceiling = max(profile["products"][width].values())
    achieved = profile["gflop"] / profile["step_s"]
    text = (
        f"{profile['program']}: a step takes {profile['step_s']:.3f} s under the profiler, {profile['tokens']:,.0f} "
        f"target tokens, {profile['gflop']:,.0f} GFLOP of products on paper: {achieved:,.0f} GFLOP/s, "
        f"{achieved / ceiling:.0%} of the fastest product here ({ceiling:,.0f} in {width})\n\n"
    )
    rows = []
    for found in profile["operators"][:TOP]:
        rate = found["gflops"]
        counted = rate is not None and rate > 1  # element-wise operators count an operation for each number
        cells = [f"{rate:,.0f}", f"{rate / ceiling:.0%}"] if counted else ["", ""]
        rows.append([f"`{found['name']}`", f"{found['share']:.1%}", f"{found['calls']:,.0f}", *cells])
    rest = 1 - sum(found["share"] for found in profile["operators"][:TOP])
    rows.append(["everything else, Python included", f"{rest:.1%}", "", "", ""])
    text += markdown(["operator", "of the time", "calls a step", "GFLOP/s", "of the ceiling"], rows) + "\n"
    products = profile["products"]
    shapes = [[s, *(f"{products[dtype][s]:,.0f}" for dtype in ("fp32", "bf16"))] for s in products["fp32"]]
    return text + markdown(
        ["one product alone, rows x inner x columns", "fp32 GFLOP/s", "bf16 GFLOP/s"], shapes
    )


if __name__ == "__main__":
    open_door(main)

"""Programs that measure themselves, each in a process of its own: Dragoman's, and those of other projects (peers).

A program ends with a line of JSON. Peers and their environments are no part of this project: scripts/README.md
says where to get them. No torch is imported here: on Linux, a process begins with the peak memory of the process
that started it.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tables import Record

from dragoman.errors import UserError, check_choice

# name: (virtual environment, NAME of bench_train_NAME.py or bench_decode_NAME.py, environment variables)
Peers = dict[str, tuple[str, str, dict[str, str]]]
_TOOLKITS: Peers = {name: (name, name, {}) for name in ("hf", "opennmtpy", "eole", "sockeye")}
TRAINERS = _TOOLKITS | {
    "joeynmt": ("joeynmt", "joeynmt", {}),
    "torch": ("raw", "torch", {}),
    "torch-bf16": ("raw", "torch", {"TORCH_DTYPE": "bf16"}),
}
# CTranslate2 alone: as many workers as threads, one thread each.
_WORKERS = {"CT2_INTRA": "1", "OMP_NUM_THREADS": "1"}
DECODERS = _TOOLKITS | {
    "ct2-float32": ("raw", "ct2", {"CT2_TYPE": "float32", **_WORKERS}),
    "ct2-int8": ("raw", "ct2", {"CT2_TYPE": "int8", **_WORKERS}),
}


@dataclass(frozen=True, kw_only=True)
class Program:
    """A command; `settings` is its last argument, as JSON. A peer has none: it reads environment variables."""

    name: str
    command: Sequence[str]
    settings: Record | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkout:
    """A copy of Dragoman, the python that runs it, and its scripts/bench."""

    name: str
    python: str
    folder: Path

    def program(self, script: str, name: str, settings: Record) -> Program:
        """One of its programs."""
        command = [self.python, str(self.folder / script)]
        return Program(name=f"{self.name} {name}", command=command, settings=settings)


def add_options(parser: argparse.ArgumentParser, peers: Peers, *, rounds: int) -> None:
    """Add the options that every comparison has."""
    n_cores, add = os.cpu_count() or 1, parser.add_argument
    add("--peers", nargs="*", metavar="PEER", help=f"of {', '.join(peers)} (all; none: --peers alone)")
    add("--also", nargs="*", default=[], metavar="NAME=FOLDER", help="other checkouts, each with a .venv")
    add("--rounds", type=int, default=rounds, metavar="N", help=f"turns of each program ({rounds})")
    add("--threads", type=int, default=n_cores, metavar="N", help=f"threads of each program ({n_cores})")
    add("--noise", type=float, default=0.04, metavar="X", help="share that other processes may use (0.04)")
    add("--results", type=Path, metavar="FOLDER", help="write the tables and every figure here")


def checkouts(also: Sequence[str]) -> list[Checkout]:
    """This checkout, and those of --also."""
    listed = [Checkout("Dragoman", sys.executable, Path(__file__).resolve().parent)]
    for entry in also:
        name, _, folder = entry.partition("=")
        python = Path(folder).absolute() / ".venv" / "bin" / "python"
        if not folder or not python.exists():
            raise UserError(f"--also {entry}: there is no {python}. Write NAME=FOLDER of a checkout")
        listed.append(Checkout(name, str(python), Path(folder).absolute() / "scripts" / "bench"))
    return listed


def peer_programs(peers: Peers, kind: str, selected: Sequence[str] | None) -> list[Program]:
    """The peers that are installed; prints a line for each of the others. `kind` is train or decode."""
    home, scripts = os.environ.get("BENCH_HOME"), os.environ.get("BENCH_SCRIPTS")
    programs = []
    for name in peers if selected is None else selected:
        check_choice("--peers", name, peers)
        venv, script, environment = peers[name]
        python = Path(home or "BENCH_HOME") / "venvs" / venv / "bin" / "python"
        path = Path(scripts or "BENCH_SCRIPTS") / f"bench_{kind}_{script}.py"
        missing = next((each for each in (python, path) if not each.exists()), None)
        if missing is None:
            programs.append(Program(name=name, command=[str(python), str(path)], environment=environment))
        else:
            print(f"without {name}: there is no {missing}")
    return programs


def in_turns(
    programs: Sequence[Program], cases: Sequence[str], rounds: int, measure: Callable[[Program, str], Record]
) -> Iterator[Record]:
    """Yield a record of each program in each case, round after round; a peer that fails is left out."""
    # A signal must end the running program as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed = set()
    turns = [(turn, case, program) for turn in range(1, rounds + 1) for case in cases for program in programs]
    for turn, case, program in turns:
        if program.name in failed:
            continue
        print(f"round {turn} of {rounds}, {case}: {program.name}", file=sys.stderr, flush=True)
        try:
            record = measure(program, case)
        except UserError as error:
            if program.settings is not None:
                raise
            print(f"without {program.name} from here on: {error}")
            failed.add(program.name)
            continue
        yield record | {"program": program.name, "is_peer": program.settings is None, "round": turn, "case": case}


def run(program: Program, environment: Mapping[str, str], timeout: float, **settings: object) -> Record:
    """Run a program and return its last line of JSON. Raises UserError where there is none."""
    command = list(program.command)
    if program.settings is not None:
        command.append(json.dumps(program.settings | settings))
    variables = {**os.environ, **environment, **program.environment}
    if command[0] != sys.executable:
        variables.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        # BENCH_OUT is the file to which a peer appends its results.
        variables |= {"BENCH_START": str(time.time()), "BENCH_OUT": f"{folder}/results.jsonl"}
        log = Path(folder) / "log"
        with log.open("wb") as file:
            options = {"env": variables, "stdout": file, "stderr": file, "timeout": timeout, "check": False}
            try:
                # JoeyNMT ends by killing its process group.
                subprocess.run(command, start_new_session=True, **options)  # type: ignore[call-overload]
            except subprocess.TimeoutExpired:
                raise UserError(f"{program.name}: did not end within {timeout:.0f} seconds") from None
        lines = [line for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    for line in reversed(lines):
        _, brace, rest = line.partition("{")
        try:
            return json.loads(brace + rest)
        except ValueError:
            continue
    raise UserError(f"{program.name}: ended without figures. Its last line: {lines[-1] if lines else 'none'}")

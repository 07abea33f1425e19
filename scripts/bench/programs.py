"""Programs that measure themselves, each in a process of its own: Dragoman's, and those of other projects (peers).

A program ends with a line of JSON. Peers and their environments are no part of this project: scripts/README.md
says where to get them. No torch is imported here: on Linux, a process begins with the peak memory of the process
that started it.
"""

import argparse
import json
import os
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
    "hf-bf16": ("hf", "hf", {"TORCH_DTYPE": "bf16"}),
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


THIS = Checkout("Dragoman", sys.executable, Path(__file__).resolve().parent)


def add_options(parser: argparse.ArgumentParser, peers: Peers, *, rounds: int) -> None:
    """Add the options that every comparison has."""
    n_cores, add = os.cpu_count() or 1, parser.add_argument
    add("--peers", nargs="*", metavar="PEER", help=f"of {', '.join(peers)} (all; none: --peers alone)")
    add("--also", nargs="*", default=[], metavar="NAME=FOLDER", help="other checkouts, each with a .venv")
    add("--rounds", type=int, default=rounds, metavar="N", help=f"turns of each program ({rounds})")
    add("--threads", type=int, default=n_cores, metavar="N", help=f"threads of each program ({n_cores})")


def checkouts(also: Sequence[str]) -> list[Checkout]:
    """This checkout, and those of --also."""
    listed = [THIS]
    for entry in also:
        name, _, folder = entry.partition("=")
        python = Path(folder).absolute() / ".venv" / "bin" / "python"
        if not folder or not python.exists():
            raise UserError(f"--also {entry}: there is no {python}. Write NAME=FOLDER of a checkout")
        listed.append(Checkout(name, str(python), Path(folder).absolute() / "scripts" / "bench"))
    return listed


def peer_programs(peers: Peers, kind: str, selected: Sequence[str] | None) -> list[Program]:
    """The peers that are installed; prints a line for each of the others. `kind` is train or decode."""
    home, scripts = (Path(os.environ.get(name, name)) for name in ("BENCH_HOME", "BENCH_SCRIPTS"))
    programs = []
    for name in peers if selected is None else selected:
        check_choice("--peers", name, peers)
        venv, script, environment = peers[name]
        python, path = home / "venvs" / venv / "bin" / "python", scripts / f"bench_{kind}_{script}.py"
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
        yield record | {"program": program.name, "is_peer": program.settings is None, "case": case}


def run(program: Program, environment: Mapping[str, str], timeout: float, **settings: object) -> Record:
    """Run a program and return its last line of JSON. Raises UserError where there is none."""
    command = list(program.command)
    if program.settings is not None:
        command.append(json.dumps(program.settings | settings))
    variables = {**os.environ, **environment, **program.environment}
    if command[0] != sys.executable:
        variables.pop("PYTHONPATH", None)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        # BENCH_OUT is the file to which a peer appends its results.
        variables |= {"BENCH_START": str(time.time()), "BENCH_OUT": os.devnull}
        try:
            # A session of its own, because JoeyNMT ends by killing its process group.
            subprocess.run(
                command, env=variables, stdout=log, stderr=log, timeout=timeout, start_new_session=True, check=False
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"{program.name}: did not end within {timeout:.0f} seconds") from None
        log.seek(0)
        lines = [line for line in log.read().splitlines() if line.strip()]
    for line in reversed(lines):
        _, brace, rest = line.partition("{")
        try:
            return json.loads(brace + rest)
        except ValueError:
            continue
    raise UserError(f"{program.name}: ended without figures. Its last line: {lines[-1] if lines else 'none'}")

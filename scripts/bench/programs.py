"""Benchmark programs, in processes: Dragoman's and other projects' (peers).

A program ends with a line of JSON. scripts/README.md says where to get the peers. No torch is imported here: on Linux,
a process begins with the peak memory of the process that started it.
"""

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_model
from tables import FOLDER, Record

from dragoman import files
from dragoman.data.text import lines as read_lines
from dragoman.errors import UserError

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
ROOT = Path(__file__).resolve().parents[2]
THREADS = os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class Program:
    """A command that measures one case."""

    name: str
    command: Sequence[str]
    case: str = ""
    is_peer: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def add_options(parser: argparse.ArgumentParser, peers: Peers) -> None:
    """Add the options that every comparison has."""
    parser.add_argument("--peers", nargs="*", default=list(peers), choices=peers, help="(all; none: --peers alone)")
    parser.add_argument("--also", nargs="*", default=[], metavar="NAME=FOLDER", help="checkouts, each with a .venv")


def own_programs(also: Sequence[str], script: str, name: str, case: str, settings: Record) -> list[Program]:
    """A program of this checkout and those of --also; `settings` is its argument."""
    programs = []
    for entry in (f"Dragoman={ROOT}", *also):
        checkout, _, folder = entry.partition("=")
        root = Path(folder).absolute()
        python = sys.executable if root == ROOT else str(root / ".venv" / "bin" / "python")
        command = [python, str(root / "scripts" / "bench" / script), json.dumps(settings)]
        programs.append(Program(name=f"{checkout} {name}", command=command, case=case))
    return programs


def peer_programs(peers: Peers, kind: str, selected: Sequence[str], case: str, settings: Record) -> list[Program]:
    """The programs of the selected peers for a case; `kind` is train or decode.

    They read their settings from environment variables, BENCH_NAME.
    """
    home, scripts = (Path(os.environ.get(name, name)) for name in ("BENCH_HOME", "BENCH_SCRIPTS"))
    shared = {f"BENCH_{name}": str(value) for name, value in settings.items()}
    programs = []
    for name in selected:
        venv, script, environment = peers[name]
        command = [str(home / "venvs" / venv / "bin" / "python"), str(scripts / f"bench_{kind}_{script}.py")]
        programs.append(Program(name=name, command=command, case=case, is_peer=True, environment=shared | environment))
    return programs


def copy_data(data: Path, folder: Path, names: list[str]) -> None:
    """Copy the peers' normalised text and their sentencepiece model without NFKC.

    Dragoman's tokenizers do not normalise, so that all programs train on the same pieces.
    """
    model = sentencepiece_model.ModelProto()
    model.ParseFromString((data / "spm.model").read_bytes())
    model.normalizer_spec.name, model.normalizer_spec.precompiled_charsmap = "identity", b""
    (folder / "spm.model").write_bytes(model.SerializeToString())
    normalizer = SentencePieceProcessor(model_file=str(data / "spm.model"))
    for name in names:
        normalized = normalizer.normalize(list(read_lines(data / name)))
        text = "".join(line.replace("\u2581", " ").strip() + "\n" for line in normalized)
        (folder / name).write_text(text, encoding="utf-8")


def compare(
    name: str, programs: Sequence[Program], rounds: int, timeout: float, page: Callable[[list[Record]], str]
) -> None:
    """Run the programs in rounds; print the page and write runs/bench/NAME.md.

    A program that fails or is not installed is left out from there on.
    """
    failed, runs = set(), []
    for turn, program in itertools.product(range(1, rounds + 1), programs):
        if program.name in failed:
            continue
        print(f"round {turn} of {rounds}, {program.case}: {program.name}", file=sys.stderr, flush=True)
        try:
            record = run(program, timeout)
        except (UserError, OSError) as error:
            print(f"without {program.name} from here on: {error}")
            failed.add(program.name)
            continue
        runs.append(record | {"program": program.name, "is_peer": program.is_peer, "case": program.case})
        FOLDER.mkdir(parents=True, exist_ok=True)
        files.write(FOLDER / f"{name}.md", page(runs).encode())
    print(page(runs), end="")


def run(program: Program, timeout: float) -> Record:
    """Run a program; return its last line of JSON. Raises UserError if there is none."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "BENCH_THREADS", "CT2_INTER"), str(THREADS))
    # BENCH_OUT is the file to which a peer appends its results. Peers repeat noisy runs, unless BENCH_NOISE is high.
    shared = {"BENCH_START": str(time.time()), "BENCH_OUT": os.devnull, "BENCH_NOISE": "9"}
    variables = {**os.environ, **threads, **shared, **program.environment}
    if program.command[0] != sys.executable:
        variables.pop("PYTHONPATH", None)
    # A session of its own, because JoeyNMT ends by killing its process group.
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    try:
        done = subprocess.run(program.command, env=variables, timeout=timeout, check=False, errors="replace", **streams)
    except subprocess.TimeoutExpired:
        raise UserError(f"{program.name}: did not end within {timeout:.0f} seconds") from None
    lines = done.stdout.strip().splitlines() or ["none"]
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            return json.loads(line[line.index("{") :])
    raise UserError(f"{program.name}: ended without figures. Its last line: {lines[-1]}")

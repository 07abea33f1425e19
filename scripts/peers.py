"""The programs of others, which train and decode: which there are, which are here, how one is asked for its figures.

They lie outside of this project, and so do their environments; scripts/README.md tells how to get them. Each measures
itself and writes its figures as the last line of its output. Knows nothing of what the figures mean.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.errors import UserError

Record = dict[str, Any]

# name: (virtual environment, bench_train_*.py, more environment)
PEERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "hf": ("hf", "hf", {}),
    "opennmtpy": ("opennmtpy", "opennmtpy", {}),
    "eole": ("eole", "eole", {}),
    "torch": ("raw", "torch", {}),
    "sockeye": ("sockeye", "sockeye", {}),
    "joeynmt": ("joeynmt", "joeynmt", {}),
    "hf-bf16": ("hf", "hf", {"TORCH_DTYPE": "bf16"}),
    "torch-bf16": ("raw", "torch", {"TORCH_DTYPE": "bf16"}),
    # glibc told to keep freed memory, which Dragoman does by itself
    "hf-malloc": (
        "hf", "hf", {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"},
    ),
}  # fmt: skip
AS_SHIPPED = ("hf", "opennmtpy", "eole", "torch", "sockeye", "joeynmt")

# The same of bench_decode_*.py. CTranslate2 by itself: workers of one thread each, as many as there are threads.
DECODERS: dict[str, tuple[str, str, dict[str, str]]] = {
    **{name: PEERS[name] for name in AS_SHIPPED},
    "ct2-float32": ("raw", "ct2", {"CT2_TYPE": "float32", "CT2_INTRA": "1", "OMP_NUM_THREADS": "1"}),
    "ct2-int8": ("raw", "ct2", {"CT2_TYPE": "int8", "CT2_INTRA": "1", "OMP_NUM_THREADS": "1"}),
    "sockeye-int8": ("sockeye", "sockeye", {"SOCKEYE_DTYPE": "int8"}),
}
DECODERS_AS_SHIPPED = ("opennmtpy", "eole", "sockeye", "hf", "ct2-float32", "ct2-int8")


@dataclass(frozen=True, kw_only=True)
class Program:
    """What is started, and with which additions to the environment."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_peer: bool = True


def peers_here(
    wanted: Sequence[str] | None, environment: Mapping[str, str], *, decoders: bool = False
) -> list[Program]:
    """Those of the peers whose environment and program are there; of each of the others, a line why not."""
    known, shipped = (DECODERS, DECODERS_AS_SHIPPED) if decoders else (PEERS, AS_SHIPPED)
    home, scripts = environment.get("BENCH_HOME"), environment.get("BENCH_SCRIPTS")
    if wanted == [] or home is None:
        return []
    if scripts is None:
        print("without peers: BENCH_SCRIPTS does not name the folder of their programs (scripts/README.md)")
        return []
    venvs = Path(environment.get("BENCH_VENVS", str(Path(home) / "venvs")))
    found = []
    for name in wanted or shipped:
        venv, script, more = known[name]
        program = Path(scripts) / f"bench_{'decode' if decoders else 'train'}_{script}.py"
        python = venvs / venv / "bin" / "python"
        missing = next((path for path in (python, program) if not path.exists()), None)
        if missing is None:
            found.append(Program(name=name, command=[str(python), str(program)], environment=more))
        else:
            print(f"without {name}: there is no {missing}")
    return found


def run(program: Program, told: Mapping[str, str], seconds: float) -> Record:
    """Start it, wait for it at most so many `seconds`, and read its last JSON; `told` goes into its environment.

    Raises UserError, with what it said last, where there is no JSON.
    """
    # where Dragoman's modules are is none of a peer's business
    inherited = {
        key: value for key, value in os.environ.items() if key != "PYTHONPATH" or not program.is_peer
    }
    with tempfile.TemporaryDirectory(prefix="bench-train-") as folder:
        mine = {
            "BENCH_OUT": str(Path(folder) / "results.jsonl")
        }  # or it would append to the results of others
        log = Path(folder) / "log"
        with log.open("wb") as file:
            try:
                subprocess.run(
                    program.command,
                    env={**inherited, **told, **mine, **program.environment},
                    stdout=file,
                    stderr=file,
                    timeout=seconds,
                    check=False,
                    start_new_session=True,  # decoding, JoeyNMT ends by killing its process group
                )
            except subprocess.TimeoutExpired:
                raise UserError(f"{program.name} did not end in {seconds:.0f} seconds") from None
        lines = [
            line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        ]
    for line in reversed(lines):
        _, brace, rest = line.partition("{")
        try:
            return json.loads(brace + rest)
        except ValueError:
            continue
    raise UserError(f"{program.name} gave no figures; it said last: {lines[-1] if lines else 'nothing'}")

"""The programs that prove the promises hold, in their short forms."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def proof(script: str, *options: str) -> str:
    """What it prints when run as users do, on all threads; it must succeed."""
    command = [sys.executable, str(ROOT / "scripts" / script), *options]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_training_arrives_bit_by_bit_where_it_would_have() -> None:
    lines = proof("prove_resume.py", "--short").splitlines()
    hashes = {match[0] for line in lines if (match := re.search(r"\b[0-9a-f]{16}\b", line))}
    assert len(hashes) == 1
    assert lines[-1].startswith("3 of 3 runs that were killed ended as the one that was not")


def test_a_killed_writer_of_checkpoints_leaves_one_and_damage_is_noticed() -> None:
    out = proof("prove_saving.py", "--every", "9", "--no-timing")
    ours = re.findall(r"Dragoman's writer, .*: (\d+) of (\d+) kills", out)
    assert ours
    assert all(survived == tried for survived, tried in ours)
    assert "Dragoman's writer: noticed 4 of 4 cut short, 200 of 200 with a bit flipped" in out

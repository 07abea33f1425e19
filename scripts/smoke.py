"""Smoke test from training to evaluation, in a minute: python scripts/smoke.py

Trains experiment=smoke, stops it with SIGTERM, resumes it, repeats it (which must do nothing), translates, evaluates,
and exits with 1 at the first wrong result. It runs the commands as a user does, in a folder that it removes at the end.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    # The model is so small that a second thread mostly waits for the first.
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="dragoman-smoke-") as name:
        run = Path(name, "smoke")
        train = ["train.py", "experiment=smoke", f"run_dir={run}"]
        with subprocess.Popen([sys.executable, *train], cwd=ROOT) as process:
            while not (run / "bundle").is_dir() and process.poll() is None:  # until its first validation
                time.sleep(0.05)
            process.terminate()
        check(process.returncode == 128 + signal.SIGTERM, "SIGTERM ends training with the exit code 143")
        output_of(*train)
        check("resuming " in (run / "train.log").read_text(encoding="utf-8"), "the same command resumes it")
        metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
        losses = [record["loss"] for record in metrics["validations"]]
        check(metrics["finished"] and losses[-1] < 0.9 * losses[0], f"the validation loss falls: {losses}")
        check(" is finished " in output_of(*train), "a finished run does not begin again")
        lines = ["好久不见。", "", "😀", "我爱你。"]
        results = output_of("translate.py", "--model", str(run), *lines).rstrip("\n").split("\n")
        check(len(results) == len(lines), f"four lines have four translations: {results}")
        check(any(c.isascii() and c.isalpha() for c in results[0]), f"{lines[0]} gets English: {results[0]}")
        check("BLEU" in output_of("scripts/evaluate.py", "--model", str(run), "--beam", "1"), "it is evaluated")
    print("the smoke test passes")


def output_of(*command: str) -> str:
    """Run a command that must succeed, and return its stdout."""
    return subprocess.run([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def check(holds: object, claim: str) -> None:
    """Print the claim; end the program with exit code 1 unless it `holds`."""
    if not holds:
        sys.exit(f"smoke: FAILED: expected: {claim}")
    print(f"ok: {claim}", flush=True)


if __name__ == "__main__":
    main()

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
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BEGIN = time.monotonic()


def main() -> None:
    # The model is so small that a second thread mostly waits for the first.
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="dragoman-smoke-") as name:
        run = Path(name, "smoke")
        train = ["train.py", "experiment=smoke", f"run_dir={run}"]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen([sys.executable, *train], cwd=ROOT, text=True, **pipes) as process:
            while "step" not in metrics_of(run) and process.poll() is None:  # until its first validation
                time.sleep(0.05)
            process.terminate()
            out, _ = process.communicate()
        code, stopped = process.returncode, metrics_of(run)
        check(code == 128 + signal.SIGTERM, "SIGTERM ends training with the exit code 143", f"{code}:\n{out}")
        check(not stopped.get("finished") and (run / "bundle").is_dir(), "it is unfinished and has a bundle", stopped)
        out, step = output_of(*train), stopped["step"]
        metrics, log = metrics_of(run), (run / "train.log").read_text(encoding="utf-8")
        check(f"at step {step}:" in log and metrics["step"] > step, f"training resumes at step {step}", out)
        check(metrics["finished"] == "max_steps", f"it ends at step {metrics['step']}", metrics["finished"])
        losses = [record["loss"] for record in metrics["validations"]]
        check(len(losses) > 1 and losses[-1] < 0.9 * losses[0], "the validation loss falls", losses)
        check("finished" in output_of(*train), "a finished run does not begin again")

        lines = ["好久不见。", "", "😀", "我爱你。"]
        results = output_of("translate.py", "--model", str(run), *lines).rstrip("\n").split("\n")
        check(len(results) == len(lines), "four lines have four translations", results)
        check(any(c.isascii() and c.isalpha() for c in results[0]), f"{lines[0]} -> {results[0]}", "no English")
        out = output_of("scripts/evaluate.py", "--model", str(run), "--beam", "1")
        check("BLEU" in out, out.splitlines()[0])
    print("the smoke test passes")


def output_of(*command: str) -> str:
    """Run a command that must succeed, and return its stdout."""
    result = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"smoke: FAILED: {' '.join(command)}: exit code {result.returncode}:\n{result.stderr}")
    return result.stdout


def metrics_of(run: Path) -> dict[str, Any]:
    path = run / "metrics.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def check(holds: object, result: str, found: object = "") -> None:
    """Print the result; end the program with exit code 1 unless it `holds`."""
    begun = f"{time.monotonic() - BEGIN:5.1f} s"
    if not holds:
        sys.exit(f"smoke: FAILED after {begun}: not true: {result} (found {found})")
    print(f"{begun}  {result}", flush=True)


if __name__ == "__main__":
    main()

"""Check the whole path in a minute: python scripts/smoke.py

Trains experiment=smoke, stops it with SIGTERM, resumes it, repeats it (which must do nothing), translates, evaluates,
and exits with 1 at the first wrong result. It runs the commands as a user does and writes to runs/smoke, which it
removes first.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / "runs" / "smoke"
TRAIN = ["train.py", "experiment=smoke", f"run_dir={RUN.relative_to(ROOT)}"]
LIMIT = 300  # seconds for one command
BEGIN = time.monotonic()


def main() -> None:
    # The model is so small that a second thread mostly waits for the first.
    os.environ["OMP_NUM_THREADS"] = "1"
    remove_old_run()
    train_stop_resume()
    translate_and_evaluate()
    report("the smoke test passes")


def remove_old_run() -> None:
    """Remove runs/smoke if it is a run of the smoke test."""
    config = RUN / "config.yaml"
    if RUN.exists():
        lines = config.read_text(encoding="utf-8").splitlines() if config.is_file() else []
        expect("name: smoke" in lines, f"{RUN} is not a run of the smoke test: move it away")
        shutil.rmtree(RUN)


def train_stop_resume() -> None:
    stopped_at = train_and_stop()
    report(f"stopped by SIGTERM at step {stopped_at}, saved")
    out = run(*TRAIN)
    expect(f"step {stopped_at}" in out, f"it did not resume at step {stopped_at}:\n{out}")
    metrics = read_metrics()
    expect(metrics.get("finished") == "max_steps", f"the run ended with {metrics.get('finished')!r}")
    expect(metrics["step"] > stopped_at, f"no step was made after {stopped_at}")
    report(f"resumed to step {metrics['step']}")
    losses = [record["loss"] for record in metrics["validations"]]
    curve = " -> ".join(f"{loss:.2f}" for loss in losses)
    expect(len(losses) > 1 and losses[-1] < 0.9 * losses[0], f"the validation loss does not fall: {curve}")
    report(f"validation loss {curve}")
    expect("finished" in run(*TRAIN), "a finished run began again")
    report("run again: it is finished")


def train_and_stop() -> int:
    """Start training, stop it after its first validation, and return the step that it saved."""
    process = subprocess.Popen(
        [sys.executable, *TRAIN], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        deadline = time.monotonic() + LIMIT
        while "step" not in read_metrics() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    code = process.returncode
    expect(code == 128 + signal.SIGTERM, f"exit code {code} after SIGTERM, not 143:\n{out}")
    metrics = read_metrics()
    expect(metrics.get("finished") is None, f"it had finished before the signal ({metrics.get('finished')})")
    expect((RUN / "bundle").is_dir(), "there is no bundle while training is under way")
    return int(metrics["step"])


def translate_and_evaluate() -> None:
    lines = ["好久不见。", "", "😀", "我爱你。"]
    results = run("translate.py", "--model", "runs/smoke", *lines).rstrip("\n").split("\n")
    expect(len(results) == len(lines), f"{len(lines)} lines in, {len(results)} out: {results}")
    expect(any(c.isascii() and c.isalpha() for c in results[0]), f"{lines[0]} became {results[0]!r}")
    report(f"{lines[0]} -> {results[0]}")
    out = run("scripts/evaluate.py", "--model", "runs/smoke", "--beam", "1")
    report(next(line for line in out.splitlines() if "BLEU" in line))


def run(*command: str) -> str:
    """Run a command that must succeed, and return its stdout."""
    settings: Any = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": LIMIT}
    result = subprocess.run([sys.executable, *command], check=False, **settings)
    output = result.stderr or result.stdout
    expect(result.returncode == 0, f"{' '.join(command)}: exit code {result.returncode}:\n{output}")
    return result.stdout


def read_metrics() -> dict[str, Any]:
    path = RUN / "metrics.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def expect(holds: object, otherwise: str) -> None:
    """End the program with exit code 1 unless the result `holds`."""
    if not holds:
        sys.exit(f"smoke: FAILED after {time.monotonic() - BEGIN:.0f} s: {otherwise}")


def report(text: str) -> None:
    print(f"{time.monotonic() - BEGIN:5.1f} s  {text}", flush=True)


if __name__ == "__main__":
    main()

"""The whole path in a minute: python scripts/smoke.py

Trains experiment=smoke, stops it with SIGTERM on the way, continues it, runs it once more (which must do
nothing), translates, evaluates, and leaves with 1 as soon as something is not as it should be. It uses the
doors alone, as a person would, and writes only to runs/smoke, which it removes first.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / "runs" / "smoke"
TRAIN = ["train.py", "experiment=smoke", f"run_dir={RUN.relative_to(ROOT)}"]
PATIENCE = 300  # seconds for any one command: far more than it needs, and less than a CI run waits
BEGIN = time.monotonic()


def main() -> None:
    """Each step prints one line when it has held."""
    remove_old_run()
    stopped_at = train_and_stop()
    report(f"stopped by SIGTERM at step {stopped_at}, saved")
    out = door(*TRAIN)
    expect(
        "going on with" in out and f"step {stopped_at}" in out,
        f"it did not go on at step {stopped_at}:\n{out}",
    )
    metrics = read_metrics()
    expect(metrics.get("finished") == "max_steps", f"the run ended with {metrics.get('finished')!r}")
    expect(metrics["step"] > stopped_at, f"no step was made after {stopped_at}")
    report(f"continued to step {metrics['step']}")
    losses = [record["loss"] for record in metrics["validations"]]
    told = " -> ".join(f"{loss:.2f}" for loss in losses)
    expect(len(losses) > 1 and losses[-1] < 0.9 * losses[0], f"the validation loss does not fall: {told}")
    report(f"validation loss {told}")
    log = (RUN / "train.log").read_text(encoding="utf-8")
    expect(
        "stopped by signal" in log and "going on" in log, f"train.log does not tell what happened: {log!r}"
    )
    with ThreadPoolExecutor() as pool:  # three programs that mostly load libraries: side by side
        for done in [pool.submit(step) for step in (run_again, translate, evaluate)]:
            done.result()
    report("the smoke test holds")


def remove_old_run() -> None:
    """Only ever a run of ours: a real folder, with a configuration that says `name: smoke`."""
    if not RUN.exists() and not RUN.is_symlink():
        return
    config = RUN / "config.yaml"
    ours = (
        not RUN.is_symlink() and config.is_file() and "name: smoke" in config.read_text("utf-8").splitlines()
    )
    expect(ours, f"{RUN} is not a run of this program, so it stays: move it away")
    shutil.rmtree(RUN)


def train_and_stop() -> int:
    """Start training, interrupt it after its first validation, and return the step that it saved."""
    process = subprocess.Popen(
        [sys.executable, *TRAIN], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while "step" not in read_metrics() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    expect(
        process.returncode == 128 + signal.SIGTERM,
        f"exit code {process.returncode} after SIGTERM, not 143:\n{out}",
    )
    metrics = read_metrics()
    expect(
        metrics.get("finished") is None, f"it had finished before it was stopped ({metrics.get('finished')})"
    )
    expect((RUN / "bundle").is_dir(), "no bundle could be used while training went on")
    return int(metrics["step"])


def run_again() -> None:
    expect("is finished" in door(*TRAIN), "a finished run began again")
    report("run again: it says that it is finished")


def translate() -> None:
    lines = ["好久不见。", "", "😀", "我爱你。"]
    out = door("translate.py", "--model", "runs/smoke/bundle", *lines)
    found = out.rstrip("\n").split("\n")
    expect(len(found) == len(lines), f"{len(lines)} lines in, {len(found)} out:\n{out}")
    expect(any(c.isascii() and c.isalpha() for c in found[0]), f"{lines[0]} became {found[0]!r}")
    report(f"{lines[0]} -> {found[0]}")


def evaluate() -> None:
    out = door("scripts/evaluate.py", "--model", "runs/smoke/bundle", "--beam", "1")
    report(next(line for line in out.splitlines() if "BLEU" in line))


def door(*command: str) -> str:
    """What the command wrote on stdout; it must succeed."""
    result = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    said = result.stderr or result.stdout
    expect(result.returncode == 0, f"{' '.join(command)} left with {result.returncode}:\n{said}")
    return result.stdout


def read_metrics() -> dict[str, Any]:
    path = RUN / "metrics.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def expect(holds: object, otherwise: str) -> None:
    if not holds:
        fail(otherwise)


def fail(why: str) -> NoReturn:
    print(f"smoke: FAILED after {time.monotonic() - BEGIN:.0f} s: {why}", file=sys.stderr)
    sys.exit(1)


def report(what: str) -> None:
    print(f"{time.monotonic() - BEGIN:5.1f} s  {what}", flush=True)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = (
        "1"  # the model is so small that a second thread mostly waits for the first
    )
    main()

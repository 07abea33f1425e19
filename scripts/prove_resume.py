"""Prove that resumed training is bit-exact: python scripts/prove_resume.py

A small model is trained once without interruption. Then the same run is started again and again, killed with SIGKILL
(20 times at a random moment, at each of MOMENTS, twice in a run), and resumed. Each must end with the bits of the
first: weights, Adam's moments, the losses of all validations, the bundle. Everything random is on: dropout, subword
sampling, the order of the batches; and so are the moving average, gradient accumulation and, every other time, worker
processes.

Exits with 1 if one differs. The result holds for one machine, number of threads, set of versions and precision.
"""

import argparse
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dragoman.compose import compose
from dragoman.training.fit import fit
from dragoman.training.module import TranslationModule
from dragoman.training.validation import ValidationCallback

# About 160 pairs, in 16 steps of two batches
SETTINGS = [
    "recipe=none", "data.corpora=[{path:data/phrasebook/composed/validation.jsonl.gz}]",
    "data.tokenizer.kind=unigram", "data.tokenizer.sampling=0.2", "data.max_tokens=300", "data.max_length=60",
    "data.validation_size=20", "data.test_size=20",
    "model=tiny", "model.d_model=32", "model.d_ff=64", "model.n_heads=2",
    "model.n_encoder_layers=1", "model.n_decoder_layers=1", "model.dropout=0.2",
    "training.ema=0.9", "training.warmup_steps=5", "training.lr=3e-3", "training.accumulate=2",
    "trainer.accelerator=cpu", "trainer.precision=32", "trainer.max_steps=16", "trainer.validate_every=5",
    "trainer.validation_pairs=4", "trainer.samples=0", "trainer.log_every=2", "trainer.save_minutes=0.001",
]  # fmt: skip
CONTEXT: Any = multiprocessing.get_context("forkserver")
Kill = float | str  # seconds after the start of the process, or one of MOMENTS


def is_batch(module: TranslationModule, number: int) -> bool:
    """Whether the next batch of an epoch has this number; -1 is the last."""
    data: Any = module.trainer.datamodule  # type: ignore[attr-defined]  # of Lightning
    return (data.consumed - number) % data.plan.batches_per_epoch == 0


# Moment: the run is killed before the nth call of a function for which a condition holds.
STEP = TranslationModule, "training_step"
MOMENTS: dict[str, tuple[Any, str, Callable[..., bool], int]] = {
    "in a validation": (ValidationCallback, "on_validation_epoch_end", lambda *_: True, 2),
    "between a save's renames": (os, "replace", lambda old, new: Path(new).name == "last.ckpt", 2),
    "at an epoch's first batch": (*STEP, lambda module, *_: is_batch(module, 0), 2),
    "at an epoch's last batch": (*STEP, lambda module, *_: is_batch(module, -1), 1),
    "between two batches of a step": (*STEP, lambda module, batch, index: index == 13, 1),
}


def main() -> int:
    argparse.ArgumentParser(description="Kill training, resume it, compare the results bit by bit.").parse_args()
    CONTEXT.set_forkserver_preload(["dragoman.training.fit"])  # imported once, not at every start
    with tempfile.TemporaryDirectory(prefix="dragoman-prove-") as name:
        folder = Path(name)
        train(folder, "warm")  # fills the data cache
        begin = time.monotonic()
        train(folder, "straight")
        seconds = time.monotonic() - begin
        expected = outcome(folder / "straight")
        print(f"{'not interrupted':<66} {expected}", flush=True)
        rng = random.Random(1)
        # Before 0.3 most runs have not begun their first step.
        kills: list[list[Kill]] = [[rng.uniform(0.3, 0.95) * seconds] for _ in range(20)]
        kills += [[moment] for moment in MOMENTS]
        kills += [[rng.uniform(0.4, 0.6) * seconds] * 2, ["in a validation", "between a save's renames"]]
        # Every other time with worker processes
        equal = [trial(folder, f"run{n}", 2 * (n % 2), each, expected) for n, each in enumerate(kills)]
    print(f"{sum(equal)} of {len(equal)} killed and resumed runs equal the uninterrupted one")
    return 0 if all(equal) else 1


def trial(folder: Path, name: str, workers: int, kills: list[Kill], expected: str) -> bool:
    """Start a run, kill and resume it, and return whether it ended as expected."""
    events, n_saved = [], 0
    for kill in kills:
        if not train(folder, name, workers, kill):  # it ended before it was killed
            sooner = [0.8 * kill if isinstance(kill, float) else kill for kill in kills]
            return trial(folder, f"{name}-", workers, sooner, expected)
        when = f"after {kill:.2f} s" if isinstance(kill, float) else kill
        saved = any((folder / name).glob("last.ckpt*"))
        n_saved += saved
        events.append(f"killed {when} ({'resumes' if saved else 'nothing saved yet'})")
    train(folder, name, workers)
    lines = (folder / f"{name}.out").read_text().splitlines()
    n_resumed = sum(line.startswith("resuming ") or " is finished " in line for line in lines)
    result = outcome(folder / name)
    verdict = "STARTED ANEW" if n_resumed != n_saved else "equal" if result == expected else "DIFFERENT"
    print(f"{', '.join(events):<66} {result} {verdict}", flush=True)
    return verdict == "equal"


def train(folder: Path, name: str, workers: int = 0, kill: Kill | None = None) -> bool:
    """Start or resume a run in its own process; return whether it was killed."""
    process = CONTEXT.Process(target=work, args=(folder, name, workers, kill))
    process.start()
    process.join(kill if isinstance(kill, float) else None)
    process.kill()
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        sys.exit(f"training failed:\n{(folder / f'{name}.out').read_text()}")
    return process.exitcode != 0


def work(folder: Path, name: str, workers: int, kill: Kill | None) -> None:
    """Train in this process; kill it at the given moment."""
    with open(folder / f"{name}.out", "a") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    # A killed process loses the lines in its buffer.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # As in a run started by hand: workers of a fork server would not notice that the training was killed.
    multiprocessing.set_start_method("fork", force=True)
    if isinstance(kill, str):
        die(*MOMENTS[kill])
    places = f"run_dir={folder / name}", f"data.cache={folder / 'cache'}", f"data.workers={workers}"
    fit(compose([*SETTINGS, *places]))


def die(owner: Any, function: str, condition: Callable[..., bool], nth: int) -> None:
    """Kill this process before the nth call of `owner.function` under `condition`."""
    original, numbers = getattr(owner, function), itertools.count(1)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if condition(*args) and next(numbers) == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, function, wrapper)


def outcome(run: Path) -> str:
    """Hash the result of a run."""
    checkpoint = torch.load(run / "last.ckpt", weights_only=True)
    digest = hashlib.sha256()
    moments = checkpoint["optimizer_states"][0]["state"]
    for tensors in (checkpoint["state_dict"], *moments.values()):
        for name in sorted(tensors):
            digest.update(tensors[name].numpy().tobytes())
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    records = [(record["step"], record["loss"]) for record in metrics["validations"]]
    digest.update(repr(records).encode())
    digest.update((run / "bundle" / "model.safetensors").read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())

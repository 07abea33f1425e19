"""Prove that killing and resuming training changes nothing: python scripts/prove_resume.py

A small model is trained once without interruption. Then the same run is started again and again, killed with SIGKILL
(at random moments; in a validation; between the two renames of a save; at an epoch's first and last batch; with half
of a step's gradients accumulated; twice), and resumed. Each must end with the bits of the first: weights, Adam's
moments, the losses of all validations, the bundle. Everything random is on: dropout, subword sampling, the order of
the batches; and so are the moving average, gradient accumulation and, every other time, worker processes.

Exits with 1 if one differs. The result holds for one machine, number of threads, set of versions and precision.
"""

import argparse
import contextlib
import hashlib
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

from dragoman import config as settings

CORPUS = "data/phrasebook/composed/validation.jsonl.gz"  # 200 pairs, here to train on
CONTEXT: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
VALIDATION, SAVE, BETWEEN = "in a validation", "between a save's renames", "between two batches of a step"
MOMENTS = (VALIDATION, SAVE, "at an epoch's first batch", "at an epoch's last batch", BETWEEN)
Kill = float | str  # seconds after the first step began, or one of MOMENTS


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill training, resume it, compare the results bit by bit.")
    parser.add_argument("--trials", type=int, default=20, metavar="N", help="kills at random moments (20)")
    parser.add_argument("--short", action="store_true", help="three runs, killed four times")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the random moments (1)")
    args = parser.parse_args()
    CONTEXT.set_forkserver_preload(["dragoman.training.fit"])  # imported once, not at every start
    with tempfile.TemporaryDirectory(prefix="dragoman-prove-") as name:
        folder = Path(name)
        train(folder, "warm")  # fills the data cache
        seconds = train(folder, "straight") or 0.0
        expected = outcome(folder / "straight")
        print(f"{'not interrupted':<66} {expected}", flush=True)
        rng = random.Random(args.seed)
        kills: list[list[Kill]] = [[rng.uniform(0.05, 0.95) * seconds] for _ in range(args.trials)]
        kills += [[moment] for moment in MOMENTS]
        kills += [[rng.uniform(0.3, 0.6) * seconds] * 2, [VALIDATION, SAVE]]
        if args.short:
            kills = [[VALIDATION, SAVE], [BETWEEN], [0.5 * seconds]]
        # Every other time with worker processes
        equal = [trial(folder, f"run{n}", 2 * (n % 2), each, expected) for n, each in enumerate(kills)]
    print(f"{sum(equal)} of {len(equal)} killed and resumed runs equal the uninterrupted one")
    return 0 if all(equal) else 1


def trial(folder: Path, name: str, workers: int, kills: list[Kill], expected: str) -> bool:
    """Start a run, kill and resume it, and return whether it ended as expected."""
    events, n_saved = [], 0
    for kill in kills:
        if train(folder, name, workers, kill) is None:  # it ended before it was killed
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


def train(folder: Path, name: str, workers: int = 0, kill: Kill | None = None) -> float | None:
    """Start or resume a run in its own process.

    Returns the seconds from its first step to its end, or None if it ended before it was killed.
    """
    started, start = CONTEXT.Pipe(duplex=False)
    moment = kill if isinstance(kill, str) else None
    process = CONTEXT.Process(target=work, args=(folder, name, workers, moment, start))
    process.start()
    start.close()
    with contextlib.suppress(EOFError):  # the run had no step left
        started.recv()
    begin = time.monotonic()
    if isinstance(kill, float):
        process.join(kill)
        process.kill()
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL) or (kill is None and process.exitcode):
        sys.exit(f"training failed:\n{(folder / f'{name}.out').read_text()}")
    return None if kill is not None and not process.exitcode else time.monotonic() - begin


def work(folder: Path, name: str, workers: int, moment: str | None, start: Any) -> None:
    """The process: train, and die at the moment given."""
    from dragoman.training.fit import fit
    from dragoman.training.module import TranslationModule

    with open(folder / f"{name}.out", "a") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    # A killed process loses the lines in its buffer.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # As in a run started by hand: workers of a fork server would not notice that the training was killed.
    multiprocessing.set_start_method("fork" if hasattr(os, "fork") else "spawn", force=True)
    if moment:
        die(moment)
    call_before(TranslationModule, "training_step", lambda *_: True, 1, lambda: start.send("started"))
    fit(config_of(folder, name, workers))


def config_of(folder: Path, name: str, workers: int) -> settings.Config:
    """Three epochs in 16 steps of two batches."""
    return settings.Config(
        name="proof",
        run_dir=str(folder / name),
        data=settings.DataConfig(
            corpora=[settings.CorpusConfig(path=CORPUS)], cache=str(folder / "cache"), workers=workers,
            tokenizer=settings.TokenizerConfig(kind="unigram", sampling=0.2),
            max_tokens=300, max_length=60, validation_size=20, test_size=20,
        ),
        model=settings.ModelConfig(
            d_model=32, d_ff=64, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, dropout=0.2
        ),
        training=settings.TrainingConfig(ema=0.9, warmup_steps=5, lr=3e-3, accumulate=2, average_last=2),
        trainer=settings.TrainerConfig(
            accelerator="cpu", precision="32", max_steps=16, validate_every=5, validation_pairs=4, samples=0,
            log_every=2, save_minutes=0.001,
        ),
    )  # fmt: skip


def die(moment: str) -> None:
    """Kill this process when it comes to the moment."""
    from dragoman import files
    from dragoman.training.module import TranslationModule
    from dragoman.training.validation import ValidationCallback

    def is_batch(module: Any, number: int) -> bool:
        data = module.trainer.datamodule
        return (data.consumed - number) % data.plan.batches_per_epoch == 0

    step = TranslationModule, "training_step"
    conditions: tuple[tuple[Any, str, Callable[..., bool], int], ...] = (
        (ValidationCallback, "on_validation_epoch_end", lambda *_: True, 2),
        (files.os, "replace", lambda old, new: Path(new).name == "last.ckpt", 2),
        (*step, lambda module, *_: is_batch(module, 0), 2),
        (*step, lambda module, *_: is_batch(module, -1), 1),
        (*step, lambda module, batch, index: index == 13, 1),
    )
    call_before(*conditions[MOMENTS.index(moment)], lambda: os.kill(os.getpid(), signal.SIGKILL))


def call_before(owner: Any, function: str, when: Callable[..., bool], nth: int, call: Callable[[], None]) -> None:
    """Call `call` before the nth call of `owner.function` for which `when` is true."""
    original, left = getattr(owner, function), [nth]

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        left[0] -= when(*args)
        if when(*args) and left[0] == 0:
            call()
        return original(*args, **kwargs)

    setattr(owner, function, wrapper)


def outcome(run: Path) -> str:
    """Hash the result of a run."""
    import torch

    checkpoint = torch.load(run / "last.ckpt", weights_only=True)
    digest = hashlib.sha256()
    moments = checkpoint["optimizer_states"][0]["state"]
    for tensors in (checkpoint["state_dict"], *moments.values()):
        for name in sorted(tensors):
            digest.update(tensors[name].numpy().tobytes())
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    records = [(record["step"], record["loss"]) for record in metrics["validations"]]
    digest.update(repr((records, metrics["average"]["loss"])).encode())
    digest.update((run / "bundle" / "model.safetensors").read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())

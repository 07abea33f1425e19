"""Kill training again and again, and see that nothing is changed by it: python scripts/prove_resume.py

A minute model is trained once without interruption. Then the same run is begun again and again, killed with SIGKILL
(at random moments; during a validation; between the two renames of a save; at an epoch's first and last batch; with
half of a step's gradients gathered; twice), and continued. Each must end with the very bits of the first: weights,
Adam's moments, the losses of all validations, the bundle. Everything random is on: dropout, subword sampling, the
order of the batches; so are the moving average, gradient accumulation and, every other time, worker processes.

Leaves with 1 if one does not. It promises this for one machine, number of threads, set of versions and precision.
"""

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PHRASES = ROOT / "data" / "phrasebook" / "handwritten" / "people.tsv"
CONTEXT: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
MOMENTS = (
    "in a validation", "between a save's renames", "at an epoch's first batch", "at an epoch's last batch",
    "between two batches of a step",
)  # fmt: skip
Kill = float | str  # seconds after the first step began, or one of MOMENTS


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Kill training, continue it, compare the results bit by bit."
    )
    parser.add_argument("--trials", type=int, default=20, metavar="N", help="kills at random moments (20)")
    parser.add_argument("--short", action="store_true", help="three runs, killed four times")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the random moments (1)")
    args = parser.parse_args()
    CONTEXT.set_forkserver_preload(
        ["dragoman.training.fit", "dragoman.config"]
    )  # loaded once, not at every start
    with tempfile.TemporaryDirectory(prefix="dragoman-prove-") as name:
        folder = Path(name)
        train(folder, "warm")  # fills the data cache, loads what is loaded late
        seconds = train(folder, "straight") or 0.0
        wanted = outcome(folder / "straight")
        print(f"{'not interrupted':<66} {wanted}", flush=True)
        chance = random.Random(args.seed)
        twice: list[Kill] = ["in a validation", "between a save's renames"]
        kills: list[list[Kill]] = [[chance.uniform(0.05, 0.95) * seconds] for _ in range(args.trials)]
        kills += [[moment] for moment in MOMENTS]
        kills += [[chance.uniform(0.3, 0.6) * seconds] * 2, twice]
        if args.short:
            kills = [twice, [MOMENTS[-1]], [0.5 * seconds]]
        equal = [trial(folder, number, its, wanted) for number, its in enumerate(kills)]
    print(f"{sum(equal)} of {len(equal)} runs that were killed ended as the one that was not")
    sys.exit(0 if all(equal) else 1)


def trial(folder: Path, number: int, kills: list[Kill], wanted: str) -> bool:
    """Begin a run, kill it so often, let it end; whether it went on where it had been saved, and ended as wanted."""
    name, told, n_saved = f"run{number}", [], 0
    for kill in kills:
        while train(folder, name, workers=2 * (number % 2), kill=kill) is None:
            kill = 0.8 * kill if isinstance(kill, float) else kill  # it was too fast for us
            name += "again"
        when = f"after {kill:.2f} s" if isinstance(kill, float) else kill
        told.append(f"killed {when} (saved: step {saved_step(folder / name)})")
        n_saved += any(path.suffix != ".part" for path in (folder / name).glob("last.ckpt*"))
    train(folder, name, workers=2 * (number % 2))
    got = outcome(folder / name)
    n_continued = len(re.findall("^going on with | is finished ", (folder / f"{name}.out").read_text(), re.M))
    continued = n_continued == n_saved >= any(isinstance(kill, str) for kill in kills)
    verdict = "BEGUN ANEW" if not continued else "equal" if got == wanted else "DIFFERENT"
    print(f"{', '.join(told):<66} {got} {verdict}", flush=True)
    return continued and got == wanted


def train(folder: Path, name: str, *, workers: int = 0, kill: Kill | None = None) -> float | None:
    """Run the run, or go on with it, in a process of its own; seconds from its first step to its end, None if it should
    have been killed and was not."""
    begun, begins = CONTEXT.Pipe(duplex=False)
    moment = kill if isinstance(kill, str) else None
    process = CONTEXT.Process(target=work, args=(folder, name, workers, moment, begins))
    process.start()
    begins.close()
    with contextlib.suppress(EOFError):  # it had no step left to make, or did not come so far
        begun.recv()
    begin = time.monotonic()
    if isinstance(kill, float):
        process.join(kill)  # or its end
        process.kill()
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL) or (kill is None and process.exitcode):
        sys.exit(f"training failed:\n{(folder / f'{name}.out').read_text()}")
    return None if kill is not None and not process.exitcode else time.monotonic() - begin


def work(folder: Path, name: str, workers: int, moment: str | None, begins: Any) -> None:
    """What the process does. Its main thread, its file descriptors and its life are its own."""
    from dragoman.training.fit import fit
    from dragoman.training.module import TranslationModule

    with open(folder / f"{name}.out", "a") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    # As in a run that is begun by hand. Workers of a fork server would not notice that the training was killed.
    multiprocessing.set_start_method("fork" if hasattr(os, "fork") else "spawn", force=True)
    config = config_of(folder, name, workers)
    if moment:
        die(moment)
    call_before(TranslationModule, "training_step", lambda *_: True, 1, lambda: begins.send("begun"))
    fit(config)


def config_of(folder: Path, name: str, workers: int) -> Any:
    """Three epochs in 16 steps of two batches."""
    from dragoman.config import Config
    from dragoman.data.corpus import CorpusConfig
    from dragoman.data.datamodule import DataConfig
    from dragoman.data.tokenizer import TokenizerConfig
    from dragoman.model.transformer import ModelConfig
    from dragoman.training.module import TrainingConfig
    from dragoman.training.trainer import TrainerConfig

    corpus = folder / "phrases.tsv"
    if not corpus.exists():
        lines = PHRASES.read_text(encoding="utf-8").splitlines()[:200]
        corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Config(
        name="proof",
        run_dir=str(folder / name),
        data=DataConfig(
            corpora=[CorpusConfig(path=str(corpus))],
            tokenizer=TokenizerConfig(kind="unigram", vocab_size=600, sampling=0.2),
            cache=str(folder / "cache"), workers=workers,
            max_tokens=300, max_length=60, validation_size=20, test_size=20,
        ),
        model=ModelConfig(
            d_model=32, d_ff=64, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, dropout=0.2
        ),
        training=TrainingConfig(ema=0.9, warmup_steps=5, lr=3e-3, accumulate=2, average_last=2),
        trainer=TrainerConfig(
            accelerator="cpu", precision="32", max_steps=16, validate_every=5, validation_pairs=4, samples=0,
            log_every=2, save_minutes=0.001,
        ),
    )  # fmt: skip


def die(moment: str) -> None:
    """Kill this process when it comes to that moment for the second time."""
    from dragoman import durable
    from dragoman.training.module import TranslationModule
    from dragoman.training.quality import Quality

    def position(module: TranslationModule) -> tuple[int, int]:
        data = module.trainer.datamodule  # type: ignore[attr-defined]
        return data.consumed, data.batches_per_epoch

    def renamed(old: Path, new: Path) -> bool:
        return Path(old).name == "last.ckpt.part"

    def first(module: TranslationModule, *_: Any) -> bool:
        return position(module)[0] % position(module)[1] == 0

    def last(module: TranslationModule, *_: Any) -> bool:
        return (position(module)[0] + 1) % position(module)[1] == 0

    def between(module: TranslationModule, batch: Any, index: int) -> bool:
        return index == 13

    moments: dict[str, tuple[Any, str, Callable[..., bool], int]] = {
        MOMENTS[0]: (Quality, "_translate", lambda *_: True, 2),
        MOMENTS[1]: (durable.os, "replace", renamed, 2),
        MOMENTS[2]: (TranslationModule, "training_step", first, 2),
        MOMENTS[3]: (TranslationModule, "training_step", last, 1),
        MOMENTS[4]: (TranslationModule, "training_step", between, 1),
    }
    call_before(*moments[moment], lambda: os.kill(os.getpid(), signal.SIGKILL))


def call_before(
    owner: Any, function: str, when: Callable[..., bool], nth: int, call: Callable[[], None]
) -> None:
    """Have the nth call of `owner.function` of which `when` is true preceded by another."""
    original, left = getattr(owner, function), [nth]

    def preceded(*args: Any, **kwargs: Any) -> Any:
        left[0] -= when(*args)
        if when(*args) and left[0] == 0:
            call()
        return original(*args, **kwargs)

    setattr(owner, function, preceded)


def saved_step(run: Path) -> int | None:
    """Of the checkpoint that the run will go on from."""
    from dragoman.training.checkpoint import newest

    found = newest(run, None)
    return found.step if found else None


def outcome(run: Path) -> str:
    """A hash of what the run arrived at."""
    import torch

    checkpoint = torch.load(run / "last.ckpt", weights_only=True)
    arrived = hashlib.sha256()
    moments = checkpoint["optimizer_states"][0]["state"]
    for tensors in (checkpoint["state_dict"], *moments.values()):
        for name in sorted(tensors):
            arrived.update(tensors[name].numpy().tobytes())
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    records = [(record["step"], record["loss"]) for record in metrics["validations"]]
    arrived.update(repr((records, metrics["average"]["loss"])).encode())
    arrived.update((run / "bundle" / "model.safetensors").read_bytes())
    return arrived.hexdigest()[:16]


if __name__ == "__main__":
    main()

"""Kill the writer of checkpoints at every line of it, damage its files, and time it: python scripts/prove_saving.py

Three things, each for Dragoman's writer and for the one that Lightning's ModelCheckpoint uses by default
(TorchCheckpointIO), both told to write the next checkpoint in place of the last, as `save_last` does:

1. A process saves over two earlier checkpoints and is killed with SIGKILL before the nth line of the writer's code, for
   every n; with the temporary folder (TMPDIR) on the same file system and, where there is another, on that. It
   survives if a checkpoint can be loaded afterwards that is no older than the last but one.
2. A checkpoint is cut short or has one bit flipped. It is noticed if loading refuses.
3. A checkpoint of the model of experiment=zh_en is saved, with and without waiting for the disk.

A kill is not a power cut: what a disk has not been told to keep (fsync) survives the one and not the other.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import fsspec.implementations.local
import fsspec.transaction
import lightning.fabric.utilities.cloud_io
import torch
from lightning.fabric.plugins import CheckpointIO, TorchCheckpointIO

from dragoman import durable
from dragoman.config import check
from dragoman.errors import UserError
from dragoman.model.transformer import Transformer
from dragoman.training import checkpoint as checkpoints
from dragoman.training.checkpoint import LAST, SealedCheckpointIO, newest
from dragoman.training.trainer import TrainerConfig

OURS, STOCK = "Dragoman's writer", "Lightning's TorchCheckpointIO"
FILES = {  # whose lines are the points
    OURS: [durable, checkpoints],
    STOCK: [lightning.fabric.utilities.cloud_io, fsspec.implementations.local, fsspec.transaction, shutil],
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill, damage and time two writers of checkpoints.")
    parser.add_argument("--folder", type=Path, help="to work in (a temporary one)")
    parser.add_argument(
        "--other", type=Path, default=Path("/dev/shm"), help="on another file system (/dev/shm)"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth line (1)")
    parser.add_argument("--no-timing", action="store_true", help="leave out the third part")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a forked process would wait for the threads it has not inherited
    with tempfile.TemporaryDirectory(prefix="dragoman-prove-", dir=args.folder) as name:
        folder = Path(name)
        places = {"TMPDIR beside it": folder}
        if args.other.is_dir() and args.other.stat().st_dev != folder.stat().st_dev:
            places["TMPDIR elsewhere"] = Path(tempfile.mkdtemp(prefix="dragoman-prove-", dir=args.other))
        lost = 0
        for writer in (OURS, STOCK):
            for place, temporary in places.items():
                lost += kills(folder, writer, place, temporary, args.every) * (writer == OURS)
        lost += damage(folder)
        if not args.no_timing:
            cost(folder)
    shutil.rmtree(places.get("TMPDIR elsewhere", folder), ignore_errors=True)
    sys.exit(1 if lost else 0)


def io_of(writer: str) -> CheckpointIO:
    return SealedCheckpointIO() if writer == OURS else TorchCheckpointIO()


def content(step: int) -> dict[str, Any]:
    return {"state_dict": {"w": torch.full((1 << 16,), float(step))}, "global_step": step, "run": "proof"}


def kills(folder: Path, writer: str, place: str, temporary: Path, every: int) -> int:
    """Kill at each point; print one line for each part of the writer; how often nothing was left."""
    at = folder / "kills"
    events = folder / "events.json"
    fresh(at, writer)
    save_until(0, at, writer, temporary, events)
    points = json.loads(events.read_text())
    tried: Counter[str] = Counter()
    survived: Counter[str] = Counter()
    for n in range(1, len(points) + 1, every):
        fresh(at, writer)
        save_until(n, at, writer, temporary, events)
        tried[points[n - 1]] += 1
        survived[points[n - 1]] += readable(at, writer) in (2, 3)
    total = sum(tried.values())
    print(f"{writer}, {place}: {sum(survived.values())} of {total} kills left a checkpoint to go on from")
    told = (f"{part} {survived[part]}/{tried[part]}" for part in tried)
    print(f"    {', '.join(told)}", flush=True)
    return total - sum(survived.values())


def fresh(at: Path, writer: str) -> None:
    """Steps 1 and 2, saved."""
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir()
    for step in (1, 2):
        io_of(writer).save_checkpoint(content(step), at / LAST)


def save_until(n: int, at: Path, writer: str, temporary: Path, events: Path) -> None:
    """Save step 3 in another process, and kill it before its nth line; with n = 0 write down what lines there are."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    tempfile.tempdir = str(temporary)
    names: list[str] = []
    files = {str(module.__file__) for module in FILES[writer]}

    def line(frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "line":
            names.append(frame.f_code.co_name)
            if len(names) == n:
                os.kill(os.getpid(), signal.SIGKILL)
        return line

    sys.settrace(lambda frame, event, arg: line if frame.f_code.co_filename in files else None)
    io_of(writer).save_checkpoint(content(3), at / LAST)
    sys.settrace(None)
    events.write_text(json.dumps(names))
    os._exit(0)


def readable(at: Path, writer: str) -> int | None:
    """The step of the checkpoint that can be gone on from; None if there is none."""
    path = at / LAST
    if writer == OURS:
        found = newest(at, "proof")
        if found is None:
            return None
        path = found.path
    try:
        loaded = io_of(writer).load_checkpoint(path, weights_only=True)
    except Exception:  # whatever it is, nothing was loaded
        return None
    step = loaded["global_step"]
    return step if torch.equal(loaded["state_dict"]["w"], content(step)["state_dict"]["w"]) else None


def damage(folder: Path, flips: int = 200) -> int:
    """Damage whole checkpoints; print how much of it is noticed; how much is not by ours."""
    chance, missed = random.Random(1), 0
    for writer in (OURS, STOCK):
        at = folder / "damage"
        fresh(at, writer)
        whole = (at / LAST).read_bytes()
        cut = [whole[:n] for n in (0, 1, len(whole) // 2, len(whole) - 1)]
        flipped = []
        for _ in range(flips):
            byte, bit = chance.randrange(len(whole)), chance.randrange(8)
            flipped.append(whole[:byte] + bytes([whole[byte] ^ 1 << bit]) + whole[byte + 1 :])
        noticed = [sum(refused(at, writer, broken) for broken in kind) for kind in (cut, flipped)]
        missed += (writer == OURS) * (len(cut) + flips - sum(noticed))
        print(
            f"{writer}: noticed {noticed[0]} of {len(cut)} cut short, {noticed[1]} of {flips} with a bit flipped"
        )
    return missed


def refused(at: Path, writer: str, broken: bytes) -> bool:
    """Whether loading a checkpoint of this content is refused."""
    for path in at.iterdir():
        path.unlink()
    (at / LAST).write_bytes(broken)
    try:
        if writer == OURS:
            newest(at, "proof")
        else:
            io_of(writer).load_checkpoint(at / LAST, weights_only=True)
    except UserError:
        return True
    except Exception:
        return writer == STOCK
    return False


def cost(folder: Path, times: int = 6) -> None:
    """Time saving what resuming experiment=zh_en takes: weights, average, two moments. The writers take turns."""
    config = check(["experiment=zh_en"])
    size = config.data.tokenizer.vocab_size
    model = Transformer(config.model, src_vocab_size=size, tgt_vocab_size=size)
    copies = [[parameter.detach().clone() for parameter in model.parameters()] for _ in range(4)]
    whole = {"state": copies, "global_step": 1, "run": "proof"}
    ways = {OURS: (OURS, True), f"{OURS} without fsync": (OURS, False), STOCK: (STOCK, True)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    path = folder / "cost" / LAST
    path.parent.mkdir()
    for _ in range(times):
        for name, (writer, waits) in ways.items():
            with contextlib.nullcontext() if waits else without_fsync():
                begin = time.monotonic()
                io_of(writer).save_checkpoint(whole, path)
                seconds[name].append(time.monotonic() - begin)
    megabytes, interval = path.stat().st_size / 1e6, 60 * TrainerConfig().save_minutes
    for name, times_taken in seconds.items():
        median = statistics.median(times_taken)
        print(
            f"{name}: {median:.2f} s for {megabytes:.0f} MB, {median / interval:.2%} of the time at one save in "
            f"{interval / 60:g} minutes",
            flush=True,
        )


@contextlib.contextmanager
def without_fsync() -> Any:
    real = os.fsync
    os.fsync = lambda handle: None  # type: ignore[assignment]
    try:
        yield
    finally:
        os.fsync = real


if __name__ == "__main__":
    main()

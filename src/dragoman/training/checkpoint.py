"""Checkpoints as files: written so that one is always whole, read only by the run that wrote them.

A checkpoint ends with a line that says whose it is and what it should hold (`tail -n 1 last.ckpt`):

    dragoman checkpoint of run 5f0c…, step 1200: 81,920 bytes, sha256 3a7b…   (of those bytes, and of the line up to :)

torch.load does not see that line, and does not notice a flipped bit either; `newest` does. There are two: last.ckpt,
and last.ckpt.previous, which stays until the next last.ckpt has been read back from the disk. A broken one is named,
put aside as last.ckpt.broken, and the run goes on from the other. Nothing but tensors and plain values is ever read:
weights_only=True, of an archive that has been looked through before.
"""

import hashlib
import logging
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric.plugins import CheckpointIO

from dragoman import durable, untrusted
from dragoman.data.prepare import say
from dragoman.errors import UserError
from dragoman.training.run import is_first

LAST = "last.ckpt"
_SEAL = re.compile(
    rb"\ndragoman checkpoint of (run (\w*), step (\d+)): (\d+) bytes, sha256 ([0-9a-f]{64})\n\Z"
)
_LONGEST_SEAL = 300
log = logging.getLogger(__name__)


class Found(NamedTuple):
    """A checkpoint that is whole."""

    path: Path
    run: str
    step: int


class SealedCheckpointIO(CheckpointIO):
    """What Lightning saves and loads with; a save replaces `path` and keeps the one before it."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        with durable.replacing(Path(path), keep_previous=True) as file:
            torch.save(checkpoint, file)  # type: ignore[arg-type]  # it only ever writes
            about = f"run {checkpoint.get('run', '')}, step {checkpoint.get('global_step', 0)}"
            size, sealed = file.size, file.sha256.copy()
            sealed.update(about.encode())
            seal = f"\ndragoman checkpoint of {about}: {size} bytes, sha256 {sealed.hexdigest()}\n"
            file.write(seal.encode())

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return untrusted.read_archive(Path(path), map_location or "cpu")

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def newest(run_dir: Path, run: str | None) -> Found | None:
    """The newest whole checkpoint in `run_dir`, of the run of that name where it is known; None where there is none.

    Raises UserError when there are checkpoints and none is whole; they are left as they are.
    """
    last = run_dir / LAST
    broken: list[str] = []
    for path in (last, durable.previous_of(last)):  # killed between two renames, there is no last.ckpt
        if not path.exists():
            continue
        found = _read_seal(path, run)
        if isinstance(found, Found):
            if broken:
                _put_aside(last, f"{broken[0]}: going on from the one before it, of step {found.step}")
            return found
        broken.append(f"{path} {found}")
    if broken:
        raise UserError(
            f"{'; '.join(broken)}: there is nothing to go on from. Choose another name (name=...), or put a whole "
            f"checkpoint of this run in place of {last}"
        )
    return None


def _put_aside(last: Path, message: str) -> None:
    """Nothing is thrown away, and the next save must not take it for a whole one to be kept."""
    if is_first():
        os.replace(last, last.with_name(f"{LAST}.broken"))
    say(message)
    log.warning(message)


def _read_seal(path: Path, run: str | None) -> Found | str:
    """The checkpoint, or in words why it is none."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return "is empty"
        file.seek(max(0, size - _LONGEST_SEAL))
        seal = _SEAL.search(file.read())
        if seal is None:
            return "is not a whole checkpoint of this program: truncated or foreign"
        about, of_run, step, n_bytes, sha256 = (part.decode() for part in seal.groups())
        if run and of_run != run:
            return "is a checkpoint of another run"
        sealed = size - len(seal[0])
        file.seek(0)
        content = hashlib.sha256()
        while sealed and (block := file.read(min(sealed, 1 << 20))):
            content.update(block)
            sealed -= len(block)
    content.update(about.encode())
    if size - len(seal[0]) != int(n_bytes) or content.hexdigest() != sha256:
        return "is damaged: its content is not what its last line says"
    return Found(path, of_run, int(step))

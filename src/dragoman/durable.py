"""Folders that are replaced whole or not at all, whatever stops the program in between.

The new content is written beside the folder and forced to the disk; only then do the two change places, by
renaming. At every moment either the old folder, complete, or the new one, complete, is found by `current`:
under its own name or, in the instant between two renames, under `.NAME.previous`. This file knows about
files and disks, and refuses to know what is in them.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def replace_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a new version of `folder` (handed an empty one) and put it in place of the old one.

    Raises what `fill` raises, and OSError (disk full, no permission); the old version is then untouched.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    new, previous = _sibling(folder, "new"), _sibling(folder, "previous")
    _remove(new)  # what an earlier, interrupted attempt left
    new.mkdir()
    try:
        fill(new)
        for directory, _, names in os.walk(new):
            for name in names:
                force_to_disk(Path(directory, name))
            force_to_disk(Path(directory))
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if folder.exists():
        _remove(previous)
        folder.rename(previous)
    new.rename(folder)
    force_to_disk(folder.parent)
    _remove(previous)


def current(folder: Path) -> Path:
    """Where the complete version of `folder` is; `folder` itself when there is none at all."""
    previous = _sibling(folder, "previous")
    return previous if previous.is_dir() and not folder.exists() else folder


def _sibling(folder: Path, role: str) -> Path:
    return folder.with_name(f".{folder.name}.{role}")


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def force_to_disk(path: Path) -> None:
    """fsync, so that a power cut cannot leave a name without its content."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders; its renames are journalled
        if os.name == "nt" and path.is_dir():
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Atomic replacement of files and folders.

New content is written to a temporary name in the same folder, synced to disk, and renamed. A process killed at any
moment leaves either the complete old content or the complete new one.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from dragoman.errors import UserError


def included(path: str) -> Path:
    """Return the path of an included file or folder, e.g. "data/phrasebook".

    A wheel has these folders inside the package, a checkout at its root.
    """
    package = Path(__file__).parent
    installed = package / path.removeprefix("data/")
    return installed if installed.exists() else package.parents[1] / path


@contextlib.contextmanager
def replacing(path: Path, *, keep_previous: bool = False) -> Iterator[IO[bytes]]:
    """Yield a file that appears as `path` when the block ends without an error.

    With `keep_previous` the old file stays as NAME.previous. Raises UserError if writing fails.
    """
    part = path.with_name(f".{path.stem[:40]}{path.suffix}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            yield file
        _sync(part)
        if keep_previous and path.exists():
            os.replace(path, previous_of(path))
        os.replace(part, path)
        _sync(path.parent)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def write(path: Path, content: bytes) -> None:
    """Replace the content of the file at `path`."""
    with replacing(path) as file:
        file.write(content)


def replace_folder(folder: Path, fill: Callable[[Path], object]) -> None:
    """Replace `folder` by a new folder; `fill` writes its content.

    If the process is killed between the two renames, the old folder remains as NAME.previous; see `current`.
    """
    new, old = folder.with_name(f".{folder.name}.{os.getpid()}.new"), previous_of(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        fill(new)
        for path in new.rglob("*"):
            _sync(path)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(folder, old)
        os.replace(new, folder)
        _sync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def current(folder: Path) -> Path:
    """Return `folder`, or its old version if a writer was killed between two renames."""
    old = previous_of(folder)
    return old if old.is_dir() and not folder.exists() else folder


def previous_of(path: Path) -> Path:
    """Return the path of the previous version of a file or folder."""
    return path.with_name(path.name + ".previous")


def sha256(path: Path) -> str:
    """Return the checksum of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Sync the entries of a folder, or the content of a file, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)

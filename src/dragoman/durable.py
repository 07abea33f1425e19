"""Files and folders that are replaced whole or not at all, whatever stops the program in between.

The one writer of everything that must not be lost: checkpoints, bundles, snapshots, a run's records, the data cache,
translations. The new content is written beside its place (as NAME.part, a folder as .NAME.new), forced to the disk,
opened again and compared with what was written; only then do the two change places, by renaming, and the folder
around them is forced to the disk too. A temporary never lies on another file system, where renaming would be copying.
Killed at any moment, it leaves the old content, complete, or the new. For a folder, and where the last but one version
is to be kept, there is an instant between two renames when it has its other name: .NAME.previous, see `current`, or
NAME.previous. What a killed attempt leaves has a name that the next attempt uses again, see also `sweep`; only beside
files that are not ours it has a name of its own, for NAME.part might be somebody's.

Whatever the system refuses (no space, no permission, a folder that is gone) becomes a `UserError` that names the path
and the bytes. This file knows about files and disks, and refuses to know what is in them.
"""

import contextlib
import errno
import hashlib
import io
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from dragoman.errors import UserError

# What a file system refuses for reasons of its own; any other OSError is a fault of the program.
REFUSALS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT,
    errno.ENOTDIR, errno.ESTALE, errno.EISDIR, errno.EEXIST,
}  # fmt: skip


class RefusalError(UserError):
    """The file system's."""


class Tally(io.BufferedIOBase):
    """A file that knows how much was written to it, what it should therefore hold, and what went wrong first."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = 0
        self.sha256 = hashlib.sha256()
        self.failure: OSError | None = None  # kept: torch.save reports another error than the one it met

    def writable(self) -> bool:
        return True

    def write(self, content) -> int:  # type: ignore[no-untyped-def]  # anything with a buffer
        try:
            self._file.write(content)
        except OSError as error:
            self.failure = self.failure or error
            raise
        self.sha256.update(content)
        self.size += memoryview(content).nbytes
        return memoryview(content).nbytes

    def flush(self) -> None:
        self._file.flush()


@contextlib.contextmanager
def replacing(path: Path, *, keep_previous: bool = False, among_others: bool = False) -> Iterator[Tally]:
    """A file to write into; it appears as `path` when the block has ended and the disk has given it back unchanged.

    With `keep_previous` the old one stays as NAME.previous; with `among_others` the folder is the user's, and no name
    in it is taken for a leftover of ours. Raises what the block raises, and UserError when the file system refuses;
    `path` is then as it was.
    """
    part = path.with_name(_unheard_of(path.name) if among_others else path.name + ".part")
    size = 0
    try:
        try:
            with open(part, "xb" if among_others else "wb") as file, Tally(file) as tally:
                try:
                    yield tally
                    file.flush()
                    os.fsync(file.fileno())
                except Exception as error:
                    raise tally.failure or error from None
                finally:
                    size = tally.size
            _verify(part, tally.sha256.hexdigest())
            if keep_previous and path.exists():
                os.replace(path, previous_of(path))
            os.replace(part, path)
            force_to_disk(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
    except BrokenPipeError:  # of the block: somebody does not want to hear any more
        raise
    except OSError as error:
        raise refusal(path, error, size, goes_on=not among_others) from error


def write(path: Path, content: bytes) -> None:
    """The same for a file that is there already, in memory."""
    with replacing(path) as file:
        file.write(content)


def previous_of(path: Path) -> Path:
    """Where `replacing` keeps the last but one version."""
    return path.with_name(path.name + ".previous")


def replace_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a new version of `folder` (handed an empty one) and put it in place of the old one.

    Raises what `fill` raises, and UserError when the file system refuses; the old version is then untouched.
    """
    folder = folder.resolve()
    new, previous = _sibling(folder, "new"), _sibling(folder, "previous")
    size = 0
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove(new)  # what an earlier, interrupted attempt left
        new.mkdir()
        try:
            fill(new)
            for directory, _, names in os.walk(new):
                for name in names:
                    size += _settle(Path(directory, name))
                force_to_disk(Path(directory))
        except BaseException:
            size = sum(path.stat().st_size for path in new.rglob("*") if path.is_file())
            shutil.rmtree(new, ignore_errors=True)
            raise
        if folder.exists():
            _remove(previous)
            folder.rename(previous)
        new.rename(folder)
        force_to_disk(folder.parent)
        _remove(previous)
    except OSError as error:
        raise refusal(folder, error, size) from error


def sweep(folder: Path) -> None:
    """Remove what killed attempts left in a folder into which nobody else is writing now."""
    for left in (*folder.glob("*.part"), *folder.glob(".*.new")):
        with contextlib.suppress(OSError):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def current(folder: Path) -> Path:
    """Where the complete version of `folder` is; `folder` itself when there is none at all."""
    previous = _sibling(folder, "previous")
    return previous if os.path.isdir(previous) and not os.path.exists(folder) else folder


def refusal(path: Path, error: OSError, size: int | None = None, *, goes_on: bool = True) -> RefusalError:
    """`error` in words: what could not be written, why, after how many bytes, and how many there is room for.

    `goes_on`: what was to be written belongs to work that the same command takes up again.
    """
    parents = path.absolute().parents  # os.path, for Path.is_dir raises where it may not look
    there = next((parent for parent in parents if os.path.isdir(parent)), Path())
    after = f"after {size:,} bytes; " if size is not None else ""
    named = os.fsdecode(error.filename or "")  # what could not be read of what was to be written, perhaps
    of = f": {named}" if named and path.parent.absolute() not in Path(named).absolute().parents else ""
    kept = ". What was there before is kept" if os.path.exists(path) else ""
    then = "; when this is mended, the same command goes on" if goes_on else ""
    return RefusalError(
        f"cannot write {path}: {error.strerror or error}{of} ({after}{shutil.disk_usage(there).free:,} bytes are free "
        f"there){kept}{then}"
    )


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


def _settle(path: Path) -> int:
    """Force a file that others wrote to the disk; its size.

    Nobody counted what they wrote: the disk has to give back what the system remembers of it before it is forced.
    """
    with open(path, "rb") as file:
        written = hashlib.file_digest(file, "sha256").hexdigest()
    force_to_disk(path)
    _verify(path, written)
    return path.stat().st_size


def _verify(path: Path, sha256: str) -> None:
    """Read `path` again, from the disk where the system can be told to forget what it remembers of it."""
    with open(path, "rb") as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise OSError(errno.EIO, "the disk does not give back what was written")


def _unheard_of(name: str) -> str:
    """Short enough for any file system, and nobody else's."""
    return f"{name[:40]}.{secrets.token_hex(8)}.part"


def _sibling(folder: Path, role: str) -> Path:
    return folder.with_name(f".{folder.name}.{role}")


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)

"""sha256 of files, each file read once: what is known of one holds for as long as nothing about it has changed.

Knows: what the system tells about a file that is not opened: where it lies on the disk, its size, when its content
was last written, and when anything about it was last changed. The last of these no program can set back, so a file
with other content has another stamp, whatever was done to its dates. One thing escapes a stamp, a second change
within the same tick of the clock: hence nothing is remembered of a file that changed a moment before it was read.
Refuses to know: what the files are.
"""

import contextlib
import json
import os
import time
from pathlib import Path

from dragoman.errors import UserError
from dragoman.untrusted import sha256 as digest_of

SETTLED = 2.0  # seconds since the last change, after which a file counts as finished


class Digests:
    """The digests kept in the file `path`: a start that finds its corpora as they were reads none of them."""

    def __init__(self, path: Path) -> None:
        self._path, self._changed = path, False
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # none yet, or damaged: then the corpora are read again
            found = {}
        self._known: dict[str, str] = found if isinstance(found, dict) else {}

    def of(self, path: Path) -> str:
        """sha256 of a file's content, read from it only where it may have changed."""
        name, (stamp, changed), now = str(path.resolve()), _stamp(path), time.time()
        known, _, digest = str(self._known.get(name)).rpartition(" ")
        if known != stamp:
            digest = digest_of(path)
            if _stamp(path)[0] == stamp and now - changed > SETTLED:
                self._known[name] = f"{stamp} {digest}"
                self._changed = True
        return digest

    def keep(self) -> None:
        """Write down what was learnt. Where that cannot be done nothing is lost but time."""
        if not self._changed:
            return
        unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(
                json.dumps(self._known, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
            )
            os.replace(unfinished, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)


def _stamp(path: Path) -> tuple[str, float]:
    """What the system tells about a file, and when it was last changed, in seconds."""
    try:
        s = path.stat()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return f"{s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}", max(s.st_mtime, s.st_ctime)

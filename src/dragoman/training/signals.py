"""What other programs, and Ctrl-C, may ask of a run: SIGINT and SIGTERM to stop, SIGUSR1 to save and go on.

While nothing is under way that would be lost, a stop is obeyed where it arrives, by raising `Stopped`; while a step is
(`patient`), it is noted, and whoever is patient looks at `asked` after the step. Asked a second time, the run stops at
once: what was saved last is whole. A signal waits for as long as a single call into C++ takes; learning a vocabulary
is such a call. A terminal that goes away (SIGHUP) asks to stop as well, except where that is ignored (nohup).

This file refuses to know what saving is. It imports nothing that takes time.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_STOPS = ("SIGINT", "SIGTERM", "SIGHUP")


def stop_at_once() -> None:
    """Until a run listens, there is nothing to save: a stop ends the process in one line, SIGUSR1 does nothing.

    Python's own answers would be a traceback from the middle of an import, or no word at all.
    """

    def leave(signum: int, frame: FrameType | None) -> None:
        sys.stderr.write("stopped, and nothing is lost; the same command begins again\n")
        sys.stderr.flush()
        os._exit(128 + signum)

    for name in _STOPS:
        _answer(name, leave)
    _answer("SIGUSR1", lambda signum, frame: None)


def _answer(name: str, handler: Any) -> Any:
    """Put a handler in place where there is such a signal; the one before it."""
    signum = getattr(signal, name, None)  # Windows has no SIGUSR1
    if signum is None or (name == "SIGHUP" and signal.getsignal(signum) == signal.SIG_IGN):
        return None
    with contextlib.suppress(ValueError):  # only the main thread may
        return signal.signal(signum, handler)
    return None


class Stopped(BaseException):  # like KeyboardInterrupt, nothing for `except Exception` to swallow
    """The run was asked to stop by a signal; `path` is what it saved then, if there was anything new."""

    def __init__(self, signum: int, path: Path | None = None) -> None:
        super().__init__(signum, path)
        self.signum, self.path = signum, path


class Signals:
    """Listens between `with` and its end, if it is entered in the main thread: nobody can signal another."""

    def __init__(self) -> None:
        self.asked: int | None = None  # the signal that asked to stop
        self.save = False  # asked to save
        self.patient = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        self.listen()
        return self

    def __exit__(self, *failure: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before.clear()

    def listen(self) -> None:
        """Listen, also after somebody else has put handlers of theirs in place of ours."""
        for name in (*_STOPS, "SIGUSR1"):
            before = _answer(name, self._save if name == "SIGUSR1" else self._stop)
            if before is not None:
                self._before.setdefault(getattr(signal, name), before)

    @contextlib.contextmanager
    def patiently(self) -> Iterator[None]:
        """Nothing in here is broken off by the first stop; it is obeyed at the end."""
        self.patient = True
        yield
        self.patient = False
        if self.asked is not None:
            raise Stopped(self.asked)

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked is not None, signum
        if again or not self.patient:
            self.patient = False
            raise Stopped(signum)

    def _save(self, signum: int, frame: FrameType | None) -> None:
        self.save = True

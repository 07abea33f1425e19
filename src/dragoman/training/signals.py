"""What other programs, and Ctrl-C, may ask of a run: SIGINT and SIGTERM to stop, SIGUSR1 to save and go on.

While nothing is under way that would be lost, a stop is obeyed where it arrives, by raising `Stopped`; while a step is
(`patient`), it is noted, and whoever is patient looks at `asked` after the step. Asked a second time, the run stops at
once: what was saved last is whole. A signal waits for as long as a single call into C++ takes; learning a vocabulary
is such a call. This file refuses to know what saving is.
"""

import contextlib
import signal
from pathlib import Path
from types import FrameType
from typing import Any


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
        for name, handler in (("SIGINT", self._stop), ("SIGTERM", self._stop), ("SIGUSR1", self._save)):
            if signum := getattr(signal, name, None):  # Windows has no SIGUSR1
                with contextlib.suppress(ValueError):
                    self._before.setdefault(signum, signal.getsignal(signum))
                    signal.signal(signum, handler)

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked is not None, signum
        if again or not self.patient:
            self.patient = False
            raise Stopped(signum)

    def _save(self, signum: int, frame: FrameType | None) -> None:
        self.save = True

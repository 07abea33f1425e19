"""Mistakes that belong to the user, told in one line.

Whoever finds one raises `UserError` with what is wrong, where, which choices there are and what to do next;
the doors (train.py, translate.py, scripts/) print that line and leave with exit code 2. Any other exception is
a fault of the program and keeps its traceback.
"""

import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

# Controls, those that turn the direction of writing, and halves of characters.
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class UserError(Exception):
    """Something the user can mend. The message is the whole story, in one line: no traceback is shown."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split("\n")).strip()  # what is quoted in it may have more
        super().__init__(
            _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], line)
        )  # nor shall it steer a terminal


def suggest(word: str, choices: Iterable[str]) -> str:
    """' (did you mean 'x'?)' for the choice closest to `word`, or '' when nothing is close."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn a `UserError` into one line on stderr and exit code 2; a reader that went away into a quiet end."""
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # e.g. `translate.py ... | head -1`: not an error of anybody's
        sys.stderr.close()
        sys.exit(0)

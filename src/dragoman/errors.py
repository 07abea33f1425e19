"""Errors that the user can correct.

Commands print a UserError as one line and exit with code 2. Any other exception is a bug and keeps its traceback.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class UserError(Exception):
    """A mistake of the user, in one line: `where: what is wrong (found X). Do Y.`"""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def suggest(word: str, choices: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the choice closest to `word`, else ""."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


def check_choice(key: str, value: str, choices: Iterable[str]) -> None:
    """Raise UserError, naming the choices, unless `value` is one of them."""
    choices = list(choices)
    if value not in choices:
        raise UserError(f"{key}={value}: choose one of {', '.join(choices)}{suggest(str(value), choices)}")


def choose(key: str, value: str, registry: Mapping[str, T]) -> T:
    """Return `registry[value]`; raise UserError, naming the choices, if it is missing."""
    check_choice(key, value, registry)
    return registry[value]

"""Warnings about a probably wrong translation, by rules without a reference."""

import re
from collections.abc import Iterator

from dragoman.data.tokenizer import Tokenizer
from dragoman.languages import Direction, length, reads

MAX_RATIO, GRACE = 3.0, 20  # of lengths as in data/cleaning.py; GRACE letters are added to the shorter side
# Two letters or more four times in a row, in the translation; in the source one is enough. A repetition begins at the
# beginning of a word, because a search from every letter would take much longer.
_LOOP = re.compile(r"(?<![a-z])(\w[^.!?。！？]{0,60}?\w)(?:[\s,，、.。]*\1){3}", re.IGNORECASE)
_SOURCE_LOOP = re.compile(r"(\w.{0,60}?)(?:[\s,，、.。]*\1){3}", re.IGNORECASE)
# Beginnings of the messages.
KINDS = (
    "repetition", "not written in the script", "copy of the source", "source not written in the script",
    "characters not seen", "unusual length",
)  # fmt: skip
MOST_NAMES = 3  # words of a name, which may stay as it is


def warnings(source: str, translation: str, direction: Direction, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield a message for each rule that applies; none for lines without letters."""
    if not _bare(source):
        return
    if (loop := _LOOP.search(translation)) and not _SOURCE_LOOP.search(source):
        yield f"repetition of '{loop[1][:20]}'"
    if not reads(direction.tgt, translation):
        yield f"not written in the script of '{direction.tgt}'"
    elif _bare(source) == _bare(translation) and _n_words(source) > MOST_NAMES:
        yield "copy of the source"
    if not reads(direction.src, source) and _n_words(source) > MOST_NAMES:
        yield f"source not written in the script of '{direction.src}'"
    # The whole line first: most lines need no look at each character.
    if _in_bytes(tokenizer, source):
        unknown = [letter for letter in dict.fromkeys(source) if letter.isalpha() and _in_bytes(tokenizer, letter)]
        if unknown:
            yield f"characters not seen in training: {''.join(unknown[:10])}"
    shorter, longer = sorted(map(length, (source, translation)))
    if longer > MAX_RATIO * (shorter + GRACE):
        yield "unusual length"


def kind_of(message: str) -> str:
    """Return the one of KINDS to which a message belongs."""
    return next(filter(message.startswith, KINDS))


def _bare(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())


def _n_words(text: str) -> int:
    """The number of words; two Chinese characters, each 2 more in `length`, are one."""
    return max(len(text.split()), (length(text) - len(text)) // 4)


def _in_bytes(tokenizer: Tokenizer, text: str) -> bool:
    """Whether the vocabulary spells a character of the text in bytes."""
    return any(piece.startswith("<0x") for piece in tokenizer.pieces(tokenizer.encode(text)))

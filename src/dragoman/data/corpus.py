"""What a parallel corpus is: pairs of sentences, what a clean sentence is, and the entry of `data.corpora`.

Knows: which characters have no business inside a sentence. `clean_text` is the one repair of text in the
program: training data and the sentences handed to the translator go through the same function, so that a
model never meets at its work what it never met at school.
Refuses to know: where corpora lie, which pairs are worth keeping, tokens.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import NamedTuple

from dragoman.errors import UserError, suggest

SPLITS = ("train", "validation", "test")
ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}
MAX_CHARS = 10_000  # a longer "sentence" is a fault of its file; nothing looks at more of it than this

# What is wrong with a character -> the characters, as the inside of a regular expression's [...]. Lone
# surrogates cannot be written as UTF-8 at all; U+2581 is the mark by which sentencepiece writes a space, and
# would become one.
DEFECTS = {
    "byte order mark": "\ufeff",
    "NUL": "\x00",
    "carriage return": "\r",
    "line separator": "\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029",
    "control character": "\x01-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad"
    "\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufffe\uffff",
    "invalid UTF-8": "\ud800-\udfff",
    "mark of sentencepiece": "\u2581",
}
_BECOMES = {
    "carriage return": " ",
    "line separator": " ",
    "invalid UTF-8": "\ufffd",
    "mark of sentencepiece": "_",
}
_DEFECT = {name: re.compile(f"[{characters}]+") for name, characters in DEFECTS.items()}
_ANY_DEFECT = re.compile(f"[{''.join(DEFECTS.values())}]")
MOST_MARKS = 30  # on one letter: what Unicode's stream-safe text has (UAX #15); no script needs a third of it
# Those that NFC sorts, in time by the square of their number: of a combining class, or (the last three) made of such.
_MARKS = "".join(filter(unicodedata.combining, map(chr, range(0x300, 0x20000)))) + "\u0f73\u0f75\u0f81"
_HEAP = re.compile(f"([{_MARKS}]{{{MOST_MARKS}}})[{_MARKS}]+")
# All marks are within a few ranges, and these are looked for in a tenth of the time.
_AROUND = (
    "\u0300-\u1dff\u20d0-\u20ff\u2cef-\u2dff\u302a-\u309a\ua66f-\uabed\ufb1e-\ufe2f\U000101fd-\U0001e94a"
)
_MAYBE = re.compile(f"[{_AROUND}]{{{MOST_MARKS + 1}}}")


def clean_text(text: str) -> str:
    """The sentence without invisible and control characters, in NFC, its white space single spaces, no letter under a
    heap of marks.

    Idempotent. Words, punctuation and full-width forms stay as they are.
    """
    if _ANY_DEFECT.search(text):
        for name, pattern in _DEFECT.items():
            text = pattern.sub(_BECOMES.get(name, ""), text)
    text = _without_heaps(text)
    if not unicodedata.is_normalized("NFC", text):
        text = _without_heaps(unicodedata.normalize("NFC", text))  # a mark may have become two
    return " ".join(text.split())


def _without_heaps(text: str) -> str:
    """The text without the marks of a letter beyond the first MOST_MARKS."""
    return text if text.isascii() or not _MAYBE.search(text) else _HEAP.sub(r"\1", text)


def defects(text: str) -> list[str]:
    """What `clean_text` will mend in this sentence, by name (white space is too common to be counted)."""
    found = []
    if _ANY_DEFECT.search(text):
        found = [name for name, pattern in _DEFECT.items() if pattern.search(text)]
    without = _without_heaps(text)
    if without != text:
        found.append("heap of marks")
    if not unicodedata.is_normalized("NFC", without):
        found.append("not NFC")
    return found


class Pair(NamedTuple):
    """A sentence and its translation; `references` are all known translations, where there is more than
    one."""

    src: str
    tgt: str
    references: tuple[str, ...] = ()

    def swapped(self) -> "Pair":
        """The other direction. `references` translate src: tgt has one known translation, src itself."""
        return Pair(self.tgt, self.src)


@dataclass(kw_only=True)
class CorpusConfig:
    """One entry of `data.corpora`. Either `path`, or `src_path` and `tgt_path` for two aligned text files.

    `path` is a file (.tsv .jsonl .parquet, also .gz and .zst), a folder laid out like a hub dataset, a
    dataset on the hub (`owner/name`), or `copy`, the made-up corpus of the copy task.
    """

    path: str | None = None
    name: str | None = None  # configuration of a hub dataset, e.g. en-zh of Helsinki-NLP/opus-100
    src_path: str | None = None
    tgt_path: str | None = None
    src_column: str | None = None  # default: the language code data.src
    tgt_column: str | None = None  # default: the language code data.tgt
    split: str = "train"  # which split plain files are; folders and hub datasets bring their own
    repeat: int = 1  # how often each training pair is seen per epoch
    optional: bool = False  # go on without it where it cannot be had

    def __post_init__(self) -> None:
        if bool(self.src_path) != bool(self.tgt_path):
            raise UserError(
                "data.corpora: src_path and tgt_path come together, one names the other side's lines"
            )
        if bool(self.path) == bool(self.src_path):
            raise UserError("data.corpora: an entry takes either path, or src_path and tgt_path")
        if self.repeat < 1:
            raise UserError(f"data.corpora: repeat is {self.repeat} for {self.label}; it must be 1 or more")
        if self.split not in SPLITS:
            raise UserError(
                f"data.corpora: split is '{self.split}' for {self.label}{suggest(self.split, SPLITS)}; choose from "
                f"{', '.join(SPLITS)}"
            )

    @property
    def label(self) -> str:
        """How messages call this corpus."""
        if self.path is None:
            return f"{self.src_path} + {self.tgt_path}"
        return f"{self.path} ({self.name})" if self.name else self.path

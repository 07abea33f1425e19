"""Lines of text files, sentence pairs, and the cleaning of text.

`clean_text` is the only normalisation, so training and translation see identically normalised text.
"""

import codecs
import gzip
import re
import unicodedata
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import UserError

SPLITS = ("train", "validation", "test")
# Limit of a sentence. Readers truncate one character above it, and cleaning drops the pair.
MAX_CHARS = 10_000
# Tag of a source that a model made (scripts/back_translate.py), as in Caswell et al. 2019. Ordinary text lacks it.
SYNTHETIC = "⟲ "

# Name of a defect -> its characters, as the inside of a regular expression's [...]. Lone surrogates cannot be
# written as UTF-8. U+2581 is the piece by which sentencepiece writes a space.
DEFECTS = {
    "invisible": "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad"
    "\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\ufffe\uffff",
    "line end": "\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029",
    "invalid UTF-8": "\ud800-\udfff",
    "sentencepiece space": "\u2581",
}
_REPLACEMENTS = {"invisible": "", "line end": " ", "invalid UTF-8": "\ufffd", "sentencepiece space": "_"}
_PATTERNS = {re.compile(f"[{DEFECTS[name]}]+"): text for name, text in _REPLACEMENTS.items()}
_INVALID = re.compile(f"[{DEFECTS['invalid UTF-8']}]")
_ANY_DEFECT = re.compile(f"[{''.join(DEFECTS.values())}]")
# Minimum number of lines that are not UTF-8 to judge the encoding of a file.
_FEW = 10


class Pair(NamedTuple):
    """A sentence and its translation.

    `references` holds all translations of src where several are known; `corpus` is CorpusConfig.part of its corpus.
    """

    src: str
    tgt: str
    references: tuple[str, ...] = ()
    corpus: str = ""

    def swapped(self) -> "Pair":
        """Return the pair in the other direction, without `references`."""
        return Pair(self.tgt, self.src, corpus=self.corpus)


def clean_text(text: str) -> str:
    """Remove control and invisible characters, normalise to NFC, collapse white space.

    Idempotent. Words, punctuation and full-width forms are unchanged.
    """
    if _ANY_DEFECT.search(text):
        for pattern, replacement in _PATTERNS.items():
            text = pattern.sub(replacement, text)
    if not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.split())


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, plain or gzip, without their line feeds.

    Lines end at line feeds alone. U+2028 and a lone carriage return are text; splitting there would misalign two
    files. Bytes that are not UTF-8 become lone surrogates, which cleaning repairs.
    """
    damaged = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.removesuffix(b"\n").decode(errors="surrogateescape")
                damaged += _INVALID.search(text) is not None
                is_utf_16 = number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
                if is_utf_16 or _FEW <= damaged > number / 2:
                    encoding = "UTF-16" if is_utf_16 else "GB18030 (Western European: CP1252)"
                    raise UserError(f"{path}: not UTF-8. Convert it: iconv -t UTF-8 -f {encoding}")
                yield text
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error


def check_aligned(src: Path, tgt: Path) -> None:
    """Raise UserError unless two files have equally many lines."""
    n_src, n_tgt = (sum(1 for _ in lines(path)) for path in (src, tgt))
    if n_src != n_tgt:
        raise UserError(
            f"{tgt}: not aligned with {src} (found {n_tgt} and {n_src} lines). Find the place: "
            f"python scripts/doctor.py --src-path {src} --tgt-path {tgt}"
        )

"""Lines of text files, sentence pairs, the cleaning of text, and its sentences.

`clean_text` normalises the text of training and of translation. (Training also decodes HTML entities.)

A model trained on single sentences translates only the first sentence of a paragraph, so the translator splits long
texts, by rules for Chinese and English. The concatenated parts are exactly the text. Uncertain boundaries are not
split: two sentences in one part harm less than half a sentence in two.
"""

import codecs
import gzip
import re
import unicodedata
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from dragoman.errors import UserError

SPLITS = ("train", "validation", "test")
# Limit of a sentence. Readers keep one character more, so that cleaning drops the pair.
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
_FEW = 10  # minimum number of lines that are not UTF-8 to judge the encoding of a file

# Marks, closing characters and white space; or line breaks. Possessive quantifiers prevent backtracking.
_BOUNDARY = re.compile(
    r"(?P<marks>[。｡！？；．….!?]++)(?P<closers>[”’」』）】》〉］｝\"')\]}»]*+)(?P<space>\s*+)"
    f"|[{DEFECTS['line end']}]++\\s*+"
)
_FULL = re.compile("[。｡！？；]")  # no white space is needed after these
# After one of these, without a space, the sentence continues.
_CONTINUES = re.compile("[，、,：:；;—–)）\\]】》〉-]")
# The mark belongs to a title or an aside: 《你好！》这本书, 他（真的！）来了
_ASIDE = re.compile("[》〉）)\\]】]")
_CONTEXT = 24  # characters of context: longer than any abbreviation
# Abbreviations that end no sentence: titles; single letters but I (J. Smith, z. B.); dotted letters but a.m, p.m
# (U.S, e.g). Their last dot is outside the match.
_ABBREVIATION = re.compile(
    r"(?i)(?:\A|(?<=[\s(\[{\"'“‘《「]))(?:mr|mrs|ms|mx|dr|prof|st|gen|col|lt|sgt|capt|cmdr|adm|maj|sen|rep|gov|pres|rev|hon|"
    r"fr|messrs|mme|mlle|vs|cf|viz|ca|sr|sra|bzw|evtl|ggf|(?-i:(?!I)[A-Za-z])|(?![ap]\.m\Z)(?:[a-z]\.)+[a-z])\Z"
)
# Words whose dot does not end a sentence when a number follows: No. 5, Fig. 3, Dec. 24.
_BEFORE_NUMBER = re.compile(
    r"(?i)\b(?:nos?|vols?|pp?|ch|sec|art|eq|figs?|approx|est|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\Z"
)
# The number of a list: "1. Open the window".
_LIST_NUMBER = re.compile(r"\d+|\S")


class Pair(NamedTuple):
    """A sentence and its translation.

    `references` holds all translations of src where several are known; `corpus` is the short_name of its CorpusConfig.
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
    return " ".join(unicodedata.normalize("NFC", text).split())


def lines(path: Path, opened: IO[bytes] | None = None) -> Iterator[str]:
    """Yield the lines of a file, plain or gzip, or of an open one, without line feeds.

    Lines end at line feeds alone. U+2028 and a lone carriage return are text; splitting there would misalign two
    files. Bytes that are not UTF-8 become lone surrogates, which cleaning repairs.
    """
    number = damaged = 0
    wrong = UserError(f"{path}: not UTF-8. Convert it: iconv -t UTF-8 -f GB18030 (or UTF-16, or CP1252)")
    try:
        with opened or (gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
            for number, line in enumerate(file, 1):
                text = line.removesuffix(b"\n").decode(errors="surrogateescape")
                damaged += _INVALID.search(text) is not None
                if _FEW <= damaged > number / 2 or line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise wrong
                yield text
        if damaged > number / 2:
            raise wrong
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def check_aligned(src: Path, tgt: Path) -> None:
    """Raise UserError unless two files have equally many lines."""
    n_src, n_tgt = (sum(1 for _ in lines(path)) for path in (src, tgt))
    if n_src != n_tgt:
        raise UserError(
            f"{tgt}: not aligned with {src} (found {n_tgt} and {n_src} lines). Find the place: "
            f"python scripts/doctor.py --src-path {src} --tgt-path {tgt}"
        )


def split_sentences(text: str, max_chars: int | None = None) -> list[tuple[str, str]]:
    """Return the sentences of a text, stripped, each with the white space after it.

    Line breaks always end a sentence. Leading white space follows a first, empty sentence. With `max_chars`, longer
    sentences are split further: after a comma, else between words, else anywhere.
    """
    parts, start = [], len(text) - len(text.lstrip())
    if start:
        parts.append(("", text[:start]))
    for match in _BOUNDARY.finditer(text, start):
        if _ends_sentence(text, start, match):
            parts += _shorten(text[start : match.end()], max_chars)
            start = match.end()
    return parts + _shorten(text[start:], max_chars)


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether a match of _BOUNDARY ends the sentence that begins at `start`."""
    marks, closers, space = match.group("marks", "closers", "space")
    if not marks or set(space) & set(DEFECTS["line end"]):
        return True
    after = text[match.end() : match.end() + 1]
    if not space and (_CONTINUES.match(after) or _ASIDE.search(closers)):
        return False
    if _FULL.search(marks):
        return True
    # 你好!我是… and 很好.他 end a sentence; 3.14, e.g., www.a.b, what?!x and 我…… hesitating do not.
    if not space:
        before = text[match.start() - 1 : match.start()]
        # Letters of scripts without spaces; full-width digits are none.
        cjk = all(character >= "\u2e80" and character.isalpha() for character in (before, after))
        return len(marks) == 1 and marks != "…" and cjk
    in_lower_case = _next_visible(text, match.end()).islower()
    if "!" in marks or "?" in marks:
        # "Wait!" he said.
        return not in_lower_case or closers[-1:] not in "\"'”’"
    return not in_lower_case and (marks != "." or bool(closers) or not _is_abbreviation(text, start, match.start()))


def _next_visible(text: str, position: int) -> str:
    """Return the next character except white space, opening quotes and brackets."""
    return text[position : position + _CONTEXT].lstrip().lstrip("\"'“‘([{「『《")[:1]


def _is_abbreviation(text: str, start: int, dot: int) -> bool:
    """Whether the dot at `dot`, before a space and a capital, marks an abbreviation."""
    before = text[max(start, dot - _CONTEXT) : dot]
    if _ABBREVIATION.search(before) or (len(before) == dot - start and _LIST_NUMBER.fullmatch(before)):
        return True
    return _BEFORE_NUMBER.search(before) is not None and _next_visible(text, dot + 1).isdigit()


def _shorten(text: str, max_chars: int | None) -> list[tuple[str, str]]:
    """Split a sentence, with the white space after it, into parts of `max_chars`."""
    parts, sentence = [], text.rstrip()
    while max_chars and len(sentence) > max_chars:
        # The last split point in the second half: after a comma, else before white space, else anywhere.
        half, limit = max_chars // 2, max_chars
        ends = (f".{{{half},{limit - 1}}}(?:[，、；：—]|[,;:](?=\\s))", f".{{{half},{limit}}}(?=\\s)", f".{{{limit}}}")
        part = next(filter(None, (re.match(end, sentence, re.DOTALL) for end in ends)))[0].rstrip()
        rest = text[len(part) :].lstrip()
        parts.append((part, text[len(part) : len(text) - len(rest)]))
        text, sentence = rest, rest.rstrip()
    return [*parts, (sentence, text[len(sentence) :])] if text else parts

"""The faults that can be seen in one pair: which of them ten thousand pairs have, as bits.

Knows: what a damaged encoding looks like, markup, tokens of other programs, scripts that do not fit the language.
Looks at single texts only where a count of characters has raised the suspicion.
Refuses to know: other pairs, files, what follows from a fault.
"""

import re

import numpy as np

from dragoman.data.cleaning import ENTITY
from dragoman.data.corpus import DEFECTS, MAX_CHARS
from dragoman.data.readers import Rows
from dragoman.doctor.characters import KIND, Sentences, reads
from dragoman.languages import is_chinese

SWAPPED, SCRIPT, EMPTY, TOO_LONG, COPY = (
    "swapped languages", "wrong script", "empty side", "too long", "source equals target",
)  # fmt: skip
REPLACED, MOJIBAKE, HTML, TAG, TOKEN = (
    "replacement character", "mojibake", "HTML entity", "markup", "special token of another program",
)  # fmt: skip
HANS, HANT, WIDE, EMOJI, RARE = (
    "simplified",
    "traditional",
    "full-width letters or digits",
    "emoji",
    "rare hanzi",
)
FAULTS = (
    SWAPPED, SCRIPT, EMPTY, TOO_LONG, COPY, REPLACED, MOJIBAKE, HTML, TAG, TOKEN, HANS, HANT, WIDE, EMOJI, RARE,
    *DEFECTS,
)  # fmt: skip
BIT = {name: np.uint32(1 << number) for number, name in enumerate(FAULTS)}

_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9]*(?:\s[^<>]{0,200})?/?>")
_TOKEN = re.compile(
    r"</?s>|<(?:pad|unk|mask|bos|eos)>|\[(?:MASK|CLS|SEP|UNK|PAD)\]|<\|\w+\|>|<0x[0-9A-F]{2}>"
)
# UTF-8 read as Windows-1252 or Latin-1: the bytes after the first of a character, as they look then.
_FOLLOWING = "".join(bytes([byte]).decode("cp1252", "replace") for byte in range(0x80, 0xC0)).replace(
    "\ufffd", ""
)
_RUN = re.compile(f"[\u00c2-\u00f4][{re.escape(_FOLLOWING)}\x80-\x9f]{{1,3}}")
# What such a run must stand for: an accented letter, a mark, Greek, Cyrillic, kana, hanzi; not the rare letters that
# a capital and a closing quotation mark would make.
_LIKELY = re.compile("[\u00a0-\u017f\u0370-\u04ff\u2010-\u2044\u20ac\u3000-\u30ff\u4e00-\u9fff\uff00-\uff5e]")
_LOST = ("锟斤拷", "烫烫烫")  # U+FFFD twice, and memory that was never written, both read as GBK


def faults(
    rows: Rows,
    sides: tuple[Sentences, Sentences],
    counts: tuple[np.ndarray, np.ndarray],
    languages: tuple[str, str],
) -> np.ndarray:
    """(n,) uint32, the BITs of each pair of a chunk. `counts` are those of `sides`."""
    found = np.zeros(len(rows.src), np.uint32)
    for texts, side, count, language in zip((rows.src, rows.tgt), sides, counts, languages, strict=True):
        found |= _of_side(texts, side, count, language)
    fits = [reads(count, language) for count, language in zip(counts, languages, strict=True)]
    crossed = [reads(count, language) for count, language in zip(counts, reversed(languages), strict=True)]
    swapped = ~fits[0] & ~fits[1] & crossed[0] & crossed[1]
    found[swapped] |= BIT[SWAPPED]
    found[~swapped & ~(fits[0] & fits[1])] |= BIT[SCRIPT]
    same = np.fromiter(map(str.__eq__, rows.src, rows.tgt), bool, len(rows.src))
    found[same & ((found & BIT[EMPTY]) == 0)] |= BIT[COPY]
    return found


def _of_side(texts: list[str], side: Sentences, counts: np.ndarray, language: str) -> np.ndarray:
    found = np.zeros(len(texts), np.uint32)
    for name in (REPLACED, *DEFECTS):
        found[counts[:, KIND[name]] > 0] |= BIT[name]
    found[counts[:, KIND["emoji"]] > 0] |= BIT[EMOJI]
    found[counts[:, KIND["rare han"]] > 0] |= BIT[RARE]
    found[counts[:, KIND["full-width digit"]] + counts[:, KIND["full-width letter"]] > 0] |= BIT[WIDE]
    found[side.lengths > MAX_CHARS] |= BIT[TOO_LONG]
    found[np.fromiter((not text or text.isspace() for text in texts), bool, len(texts))] |= BIT[EMPTY]
    for row in np.flatnonzero(counts[:, KIND["ampersand"]] > 0).tolist():
        if ENTITY.search(texts[row], 0, MAX_CHARS):
            found[row] |= BIT[HTML]
    for row in np.flatnonzero(counts[:, KIND["less than"]] + counts[:, KIND["bracket"]] > 0).tolist():
        text = texts[row][:MAX_CHARS]
        if _TOKEN.search(text):
            found[row] |= BIT[TOKEN]
        elif _TAG.search(text):
            found[row] |= BIT[TAG]
    for row in _misread(texts, side, counts):
        found[row] |= BIT[MOJIBAKE]
    if is_chinese(language):
        found[counts[:, KIND["hans"]] > 0] |= BIT[HANS]
        found[counts[:, KIND["hant"]] > 0] |= BIT[HANT]
    return found


def _misread(texts: list[str], side: Sentences, counts: np.ndarray) -> list[int]:
    """The rows whose UTF-8 was once read as Windows-1252 or as GBK."""
    points = side.points
    leads = (points[:-1] >= 0xC2) & (points[:-1] <= 0xF4) & (points[1:] >= 0x80)
    western = np.unique(side.rows[:-1][leads]).tolist()
    hanzi = counts[:, [KIND["han"], KIND["hans"], KIND["hant"]]].sum(axis=1)
    chinese = np.flatnonzero((hanzi > 1) & (side.lengths <= MAX_CHARS)).tolist()
    found = [row for row in western if _is_western(texts[row][:MAX_CHARS])]
    return found + [row for row in chinese if _is_gbk(texts[row])]


def _is_western(text: str) -> bool:
    for run in _RUN.findall(text):
        read = b"".join(
            letter.encode("latin-1") if letter <= "\xff" else letter.encode("cp1252") for letter in run
        )
        for length in range(len(read), 1, -1):
            try:
                if _LIKELY.match(read[:length].decode()):
                    return True
            except UnicodeDecodeError:
                continue
    return False


def _is_gbk(text: str) -> bool:
    try:
        meant = text.encode("gb18030").decode()
    except UnicodeError:  # as almost every text that was read rightly
        return any(lost in text for lost in _LOST)
    return any("\u4e00" <= character <= "\u9fff" for character in meant)

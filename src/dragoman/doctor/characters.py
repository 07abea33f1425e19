"""Of what kind a character is, and sentences as arrays of kinds: the doctor's eyes.

Knows: one table of a byte per code point, so that ten thousand sentences are judged by two array operations
instead of a loop over their characters. Refuses to know: pairs, languages, what is worth telling.

Simplified and traditional: a hanzi that GB 2312-1980 holds and Big5 does not is written in simplified text only,
and the other way round; hanzi that both standards hold (most), or neither, tell nothing. Both tables are Python's
codecs. Against OpenCC's character tables the hanzi found so make up 95 % of all simplified-only ones in running
text; what it calls simplified and Big5 holds all the same (么, 并, 机) is no proof and is not counted.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from dragoman.data.corpus import DEFECTS, MAX_CHARS
from dragoman.languages import is_chinese, primary

POINTS = 0x110000
KINDS = (
    "other", "letter", "han", "hans", "hant", "rare han", "kana", "hangul", "digit", "full-width digit",
    "full-width letter", "emoji", "question", "exclamation", "quote", "bracket", "ampersand", "less than", "percent",
    "replacement character", *DEFECTS,
)  # fmt: skip
KIND = {name: number for number, name in enumerate(KINDS)}
_MARKS = {
    "question": "?？؟", "exclamation": "!！", "quote": "\"“”„«»「」『』《》", "bracket": "()[]（）［］【】",
    "ampersand": "&", "less than": "<", "percent": "%％", "replacement character": "\ufffd",
}  # fmt: skip
_RANGES = {
    "han": ((0x3400, 0x9FFF), (0xF900, 0xFAFF)),
    "rare han": ((0x20000, 0x3FFFF),),
    "kana": ((0x3040, 0x30FF),),
    "hangul": ((0xAC00, 0xD7AF),),
    "emoji": ((0x2600, 0x27BF), (0x1F000, 0x1FAFF)),
    "digit": ((0x30, 0x39),),
    "full-width digit": ((0xFF10, 0xFF19),),
    "full-width letter": ((0xFF21, 0xFF3A), (0xFF41, 0xFF5A)),
}


class Sentences(NamedTuple):
    """n sentences as c code points, one after the other."""

    points: np.ndarray  # (c,) uint32
    lengths: (
        np.ndarray
    )  # (n,) int64, of the whole sentences; no more than MAX_CHARS + 1 points of each are here
    rows: np.ndarray  # (c,) int64, which sentence each point is of

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Sentences":
        """Lone surrogates included, in which form readers hand on what is not UTF-8."""
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        if len(texts) and lengths.max() > MAX_CHARS:
            texts = [text[: MAX_CHARS + 1] for text in texts]
        points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
        return cls(points, lengths, np.repeat(np.arange(len(texts)), np.minimum(lengths, MAX_CHARS + 1)))

    def counts(self) -> np.ndarray:
        """(n, len(KINDS)) int64, how many characters of each kind."""
        n, k = len(self.lengths), len(KINDS)
        return np.bincount(self.rows * k + kinds()[self.points], minlength=n * k).reshape(n, k)

    def digits(self) -> np.ndarray:
        """(n,) int64, bit d set where the sentence holds the digit d, full-width ones included."""
        found = np.flatnonzero(np.isin(kinds()[self.points], (KIND["digit"], KIND["full-width digit"])))
        values = folded()[self.points[found]] - ord("0")
        masks = np.zeros(len(self.lengths), np.int64)
        if len(found):
            rows = self.rows[found]
            begins = np.flatnonzero(np.diff(rows, prepend=-1))
            masks[rows[begins]] = np.bitwise_or.reduceat(np.int64(1) << values.astype(np.int64), begins)
        return masks


def reads(counts: np.ndarray, language: str) -> np.ndarray:
    """(n,) bool, what languages.reads says of n sentences, from their `counts` (the empty planes of Unicode aside)."""
    han = 4 * counts[:, [KIND[kind] for kind in ("han", "hans", "hant", "rare han")]].sum(axis=1)
    kana, hangul = 4 * counts[:, KIND["kana"]], 4 * counts[:, KIND["hangul"]]
    letters = counts[:, KIND["letter"]] + counts[:, KIND["full-width letter"]]
    if is_chinese(language):
        fits = (han >= letters) & (kana <= han // 8)
    elif primary(language) == "ja":
        fits = han + kana >= letters
    elif primary(language) == "ko":
        fits = hangul + han >= letters
    else:
        fits = letters > han + kana + hangul
    return fits | (han + kana + hangul + letters == 0)


@cache
def kinds() -> np.ndarray:
    """(POINTS,) uint8, the kind of each code point."""
    every = [chr(point) for point in range(POINTS)]
    table = np.array([character.isalpha() for character in every]).astype(np.uint8) * KIND["letter"]
    for name, ranges in _RANGES.items():
        for first, last in ranges:
            table[first : last + 1] = KIND[name]
    for point in range(0x4E00, 0xA000):
        in_gb, in_big5 = _holds("gb2312", every[point]), _holds("big5", every[point])
        if in_gb != in_big5:
            table[point] = KIND["hans" if in_gb else "hant"]
    for name, characters in _MARKS.items():
        table[[ord(character) for character in characters]] = KIND[name]
    for name, inside in DEFECTS.items():
        table[[ord(found) for found in re.findall(f"[{inside}]", "".join(every))]] = KIND[name]
    return table


def _holds(standard: str, character: str) -> bool:
    try:
        return len(character.encode(standard)) == 2
    except UnicodeEncodeError:
        return False


@cache
def folded() -> np.ndarray:
    """(POINTS,) uint32: letters and digits without case, width and form, by NFKC; everything else is 0."""
    table = np.zeros(POINTS, np.uint32)
    for point in [*range(0xD800), *range(0xF900, 0x20000)]:
        character = chr(point)
        if character.isalnum():
            plain = unicodedata.normalize("NFKC", character).lower()
            table[point] = ord(plain[0])  # of a ligature the first letter: enough to compare by
    table[0x20000:0x40000] = np.arange(0x20000, 0x40000)
    return table

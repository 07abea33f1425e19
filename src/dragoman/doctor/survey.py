"""Survey of a corpus in one pass: numbers for each pair, without text.

FLAGS holds the flags of each code point, so numpy examines a chunk of sentences in a few array operations. The
Cleaner of data preparation also processes the pairs, so the report counts those that training would drop.
"""

import re
import sys
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
from rich.console import Console
from rich.progress import track

from dragoman.config import DataConfig
from dragoman.data.cleaning import Cleaner, Report
from dragoman.data.corpora import Corpus
from dragoman.data.text import DEFECTS
from dragoman.languages import reads

POINTS = 0x10001  # code points with an entry; the last entry is for all later ones
# One sentence: characters, flags of BIT, whether its script is that of its language and of the other side's, hash of
# its letters and digits without case and width (0 if there are none).
SENTENCE = np.dtype([("length", "i4"), ("flags", "u4"), ("own", "?"), ("other", "?"), ("folded", "i8")])
PAIR = np.dtype([("src", SENTENCE), ("tgt", SENTENCE), ("part", "u2"), ("row", "u4"), ("held_out", "?")])
WORDS = re.compile(r"[^\W_]+")
MARKUP = re.compile(
    r"</?[A-Za-z][A-Za-z0-9]*(?:\s[^<>]{0,200})?/?>|\[(?:MASK|CLS|SEP|UNK|PAD)\]|<\|\w+\|>|<0x[0-9A-F]{2}>"
)
# UTF-8 read as Windows-1252 or Latin-1: continuation bytes after the first byte of accented letters, Cyrillic,
# punctuation, kana and Chinese. Then two U+FFFD, and uninitialised memory, both read as GBK.
_AFTER = f"[\x80-\xbf{bytes(range(0x80, 0xA0)).decode('cp1252', 'ignore')}]"
MOJIBAKE = re.compile(f"[ÂÃÄÅÐÑ]{_AFTER}|[â-é]{_AFTER}{{2}}|锟斤拷|烫烫烫")
# UTF-8 read as GBK: the first two bytes of Chinese characters.
_GBK = bytes(byte for first in range(0xE4, 0xEA) for after in range(0x80, 0xC0) for byte in (first, after))
# All characters, and the Chinese ones of two character sets: one for simplified, one for traditional writing.
_EVERY = "".join(map(chr, range(POINTS)))
_CHINESE = _EVERY[0x4E00:0xA000]
_GB2312, _BIG5 = (set(_CHINESE.encode(codec, "ignore").decode(codec)) for codec in ("gb2312", "big5"))
# Flag of a sentence -> the characters that set it, as the inside of a regular expression's [...].
CHARACTERS = {str(digit): f"{digit}{chr(0xFF10 + digit)}" for digit in range(10)} | {
    "question mark": "?？؟",
    "exclamation mark": "!！",
    "quotation mark": '"“”„«»「」『』《》',
    "bracket": r"()\[\]（）［］【】",
    "visible": r"\S",
    "simplified": "".join(_GB2312 - _BIG5),
    "traditional": "".join(_BIG5 - _GB2312),
    "replacement character": "\ufffd",
    "invalid UTF-8": DEFECTS["invalid UTF-8"],
    "invisible character": "".join(inside for name, inside in DEFECTS.items() if name != "invalid UTF-8"),
    "mojibake": f"Â-é锟烫{_GBK.decode('gbk')}",
    "markup": r"<\[",
}
BIT = {name: 1 << number for number, name in enumerate(CHARACTERS)}
FLAGS = np.zeros(POINTS, np.uint32)
for _name, _inside in CHARACTERS.items():
    FLAGS[[ord(character) for character in re.findall(f"[{_inside}]", _EVERY)]] |= BIT[_name]
DIGITS, MARKS = (1 << 10) - 1, 0b1111 << 10  # bits of the ten digits and of the four marks


class Survey(NamedTuple):
    """Corpora as numbers; parts are {"corpus": name, "split": name, "pairs": n}."""

    parts: list[dict[str, Any]]
    table: np.ndarray  # (n,) of PAIR
    report: Report  # of cleaning

    def place(self, row: int) -> dict[str, str | int]:
        """Return the place of a row of the table; rows of each part count from 1."""
        part = self.parts[self.table["part"][row]]
        return {"corpus": part["corpus"], "split": part["split"], "row": int(self.table["row"][row])}


def survey(corpora: list[Corpus], config: DataConfig) -> Survey:
    """Read every split of every corpus once."""
    cleaner, tables = Cleaner(config), [np.empty(0, PAIR)]
    parts: list[dict[str, Any]] = []
    bar = partial(track, console=Console(stderr=True), disable=not sys.stderr.isatty())
    for corpus, (split, chunks) in ((each, part) for each in corpora for part in each.open().items()):
        n_pairs = 0
        for rows in bar(chunks, f"{corpus.config.label}: reading {split}"):
            cleaner.clean(rows, split)
            table = np.empty(len(rows.src), PAIR)
            table["src"] = describe(rows.src, config.src, config.tgt)
            table["tgt"] = describe(rows.tgt, config.tgt, config.src)
            table["part"], table["row"] = len(parts), np.arange(len(table)) + n_pairs + 1
            table["held_out"] = split != "train"
            tables.append(table)
            n_pairs += len(table)
        parts.append({"corpus": corpus.config.label, "split": split, "pairs": n_pairs})
    return Survey(parts, np.concatenate(tables), cleaner.report)


def texts_of(corpora: list[Corpus], wanted: set[int]) -> dict[int, tuple[str, str]]:
    """Return the raw sentences of some rows of the table, by reading again."""
    texts: dict[int, tuple[str, str]] = {}
    first = 0
    for rows in chain(*(chunks for corpus in corpora for chunks in corpus.open().values())):
        last = first + len(rows.src)
        for row in wanted.intersection(range(first, last)):
            texts[row] = rows.src[row - first], rows.tgt[row - first]
        first = last
    return texts


def describe(texts: Sequence[str], own: str, other: str) -> np.ndarray:
    """Return numbers for each sentence, (n,) of SENTENCE; `own` is their language."""
    # A space ends each sentence, because reduceat requires non-empty ones.
    joined = "".join(f"{text} " for text in texts).encode("utf-32-le", "surrogatepass")
    flags = FLAGS[np.minimum(np.frombuffer(joined, np.uint32), POINTS - 1)]
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    starts = np.cumsum(lengths + 1) - lengths - 1
    table = np.empty(len(texts), SENTENCE)
    table["length"] = lengths
    table["flags"] = np.bitwise_or.reduceat(flags, starts)
    for column, language in (("own", own), ("other", other)):
        table[column] = [reads(language, text) for text in texts]
    table["folded"] = [hash("".join(WORDS.findall(normalize("NFKC", text).casefold()))) for text in texts]
    # The flags select candidates for these tests.
    for name, test in (("mojibake", is_mojibake), ("markup", MARKUP.search)):
        for i in np.flatnonzero(table["flags"] & BIT[name]).tolist():
            table["flags"][i] ^= BIT[name] * (not test(texts[i]))
    return table


def is_mojibake(text: str) -> bool:
    """Whether UTF-8 was once read as Windows-1252 or as GBK."""
    if MOJIBAKE.search(text):
        return True
    try:
        return any("\u4e00" <= character <= "\u9fff" for character in text.encode("gb18030").decode())
    except UnicodeError:
        return False

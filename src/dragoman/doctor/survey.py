"""Survey of a corpus in one pass: numbers for each pair, without text.

FLAGS maps each code point to its flags (bits), so a few array operations of numpy examine a chunk of sentences.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
from rich.console import Console
from rich.progress import track

from dragoman.config import DataConfig
from dragoman.data.readers import Corpus
from dragoman.data.text import DEFECTS
from dragoman.languages import is_chinese, reads

POINTS = 0x10001  # code points with an entry; the last entry is for all later ones
# One sentence. length: in characters. flags: bits of BIT. own, other: whether its script is that of its own language,
# and that of the other side's language. folded: hash of its letters and digits, without case and width (0: none).
SENTENCE = np.dtype([("length", "i4"), ("flags", "u4"), ("own", "?"), ("other", "?"), ("folded", "i8")])
PAIR = np.dtype([("src", SENTENCE), ("tgt", SENTENCE), ("part", "u2"), ("row", "u4")])
WORDS = re.compile(r"[^\W_]+")
MARKUP = re.compile(
    r"</?[A-Za-z][A-Za-z0-9]*(?:\s[^<>]{0,200})?/?>|\[(?:MASK|CLS|SEP|UNK|PAD)\]|<\|\w+\|>|<0x[0-9A-F]{2}>"
)
# UTF-8 continuation bytes, read as Latin-1 or as Windows-1252.
_AFTER = f"[\x80-\xbf{bytes(range(0x80, 0xA0)).decode('cp1252', 'ignore')}]"
# Such bytes after the first byte of accented letters and Cyrillic (two bytes), or of punctuation, kana and Chinese
# (three bytes), except French "é »". The Chinese words are two U+FFFD in UTF-8, and uninitialised memory, both read as
# GBK.
MOJIBAKE = re.compile(f"[ÂÃÄÅÐÑ]{_AFTER}|[â-é](?!\xa0»){_AFTER}{{2}}|锟斤拷|烫烫烫")
# The first two UTF-8 bytes of all Chinese characters; read as GBK, each such pair is one character.
_UTF8_PAIRS = bytes(byte for first in range(0xE4, 0xEA) for after in range(0x80, 0xC0) for byte in (first, after))
# All characters; the Chinese ones in the character sets for simplified (GB2312) and traditional (Big5) writing.
_EVERY = "".join(map(chr, range(POINTS)))
_CHINESE = _EVERY[0x4E00:0xA000]
_GB2312, _BIG5 = (set(_CHINESE.encode(codec, "ignore").decode(codec)) for codec in ("gb2312", "big5"))
# Name of a flag -> the characters that set it, written as between [ and ] of a regular expression.
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
    "mojibake": f"Â-é锟烫{_UTF8_PAIRS.decode('gbk')}",
    "markup": r"<\[",
}
BIT = {name: 1 << number for number, name in enumerate(CHARACTERS)}
FLAGS = np.zeros(POINTS, np.uint32)
for _name, _inside in CHARACTERS.items():
    FLAGS[[ord(character) for character in re.findall(f"[{_inside}]", _EVERY)]] |= BIT[_name]
DIGITS, MARKS = (1 << 10) - 1, 0b1111 << 10  # the bits of the ten digits, and of the four marks after them


class Survey(NamedTuple):
    """Corpora as numbers. A part is one split of one corpus."""

    parts: list[dict[str, Any]]  # {"corpus": name, "split": name, "pairs": n}
    table: np.ndarray  # (n,) of PAIR, part after part

    def place(self, row: int) -> dict[str, str | int]:
        """Return corpus, split and row of a row of the table; rows of a part count from 1."""
        part = self.parts[self.table["part"][row]]
        return {"corpus": part["corpus"], "split": part["split"], "row": int(self.table["row"][row])}


def survey(corpora: list[Corpus], config: DataConfig) -> Survey:
    """Read every split of every corpus once."""
    tables, parts = [np.empty(0, PAIR)], list[dict[str, Any]]()
    console = Console(stderr=True)
    for corpus in corpora:
        for split, chunks in corpus.open().items():
            n_pairs = 0
            title = f"{corpus.config.label}: reading {split}"
            for rows in track(chunks, title, console=console, disable=not console.is_terminal):
                table = np.empty(len(rows.src), PAIR)
                table["src"] = describe(rows.src, config.src, config.tgt)
                table["tgt"] = describe(rows.tgt, config.tgt, config.src)
                table["part"] = len(parts)
                table["row"] = np.arange(len(table)) + n_pairs + 1
                tables.append(table)
                n_pairs += len(table)
            parts.append({"corpus": corpus.config.label, "split": split, "pairs": n_pairs})
    return Survey(parts, np.concatenate(tables))


def texts_of(corpora: list[Corpus], wanted: set[int]) -> dict[int, tuple[str, str]]:
    """Return {row of the table: (source, target)} for `wanted` rows, by reading again."""
    every = chain(*(chunks for corpus in corpora for chunks in corpus.open().values()))
    pairs = chain.from_iterable(zip(rows.src, rows.tgt, strict=True) for rows in every)
    return {row: pair for row, pair in enumerate(pairs) if row in wanted}


def describe(texts: Sequence[str], own: str, other: str) -> np.ndarray:
    """Return numbers for n sentences in language `own`, (n,) of SENTENCE.

    `other` is the language of the other side.
    """
    # A space after each sentence, because reduceat requires non-empty segments.
    joined = "".join(f"{text} " for text in texts).encode("utf-32-le", "surrogatepass")
    flags = FLAGS[np.minimum(np.frombuffer(joined, np.uint32), POINTS - 1)]
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    starts = np.cumsum(lengths + 1) - lengths - 1
    table = np.empty(len(texts), SENTENCE)
    table["length"] = lengths
    table["flags"] = np.bitwise_or.reduceat(flags, starts)
    if not is_chinese(own):  # Japanese mixes the characters of both scripts
        table["flags"] &= ~np.uint32(BIT["simplified"] | BIT["traditional"])
    for column, language in (("own", own), ("other", other)):
        table[column] = [reads(language, text) for text in texts]
    table["folded"] = [hash("".join(WORDS.findall(normalize("NFKC", text).casefold()))) for text in texts]
    # These two flags so far only mark candidates for an exact test.
    for name, test in (("mojibake", is_mojibake), ("markup", MARKUP.search)):
        for i in np.flatnonzero(table["flags"] & BIT[name]).tolist():
            if not test(texts[i]):
                table["flags"][i] ^= BIT[name]
    return table


def is_mojibake(text: str) -> bool:
    """Whether UTF-8 was once read as Windows-1252 or as GBK."""
    if MOJIBAKE.search(text):
        return True
    # Undo a reading as GBK: the result is valid UTF-8 with Chinese characters only if there was one.
    try:
        return any("\u4e00" <= character <= "\u9fff" for character in text.encode("gb18030").decode())
    except UnicodeError:
        return False

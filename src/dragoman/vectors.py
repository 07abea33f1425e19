"""Word vectors as a text file: reading it, writing it, and which of its words are pieces of a vocabulary.

Knows: the format that word2vec, GloVe and fastText share, plain or gzipped: a word and its numbers per line, in
UTF-8, separated by spaces; word2vec and fastText put a first line "words dimension" on top. Files are large and
vocabularies small, so a file is read line by line and only the wanted words are kept; of the others it is checked that
they have the right number of numbers, not what these are.
Refuses to know: networks, what the vectors are for.

How a piece finds its word. Our tokenizers write ▁ before a piece that begins a word. A file trained on pieces
(scripts/train_word2vec.py) carries that mark itself, and there only equals match. In any other file
- "▁Word" is "Word", and if there is none, "word";
- a piece in the middle of a word of letters ("ing") is nothing: the word "ing" of such a file is another thing;
- Chinese pieces, digits and punctuation are themselves, with the mark or without.
"""

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from dragoman.errors import UserError
from dragoman.special import BOS, EOS, PAD, UNK

MARK = "▁"
_LINE_LIMIT = 2**22  # bytes: more numbers than any model has dimensions
_GZIP = b"\x1f\x8b"
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f]")
# Letters of the scripts that put no spaces between words: Thai to Tibetan, Burmese, Khmer, kana, Chinese characters.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


class Layout(NamedTuple):
    """What the beginning of a file says about it."""

    n_words: int | None  # None: a file like GloVe's, which does not say
    dimension: int


@dataclass(frozen=True, kw_only=True)
class WordVectors:
    """Words, or those of a file that were wanted, in its order."""

    rows: dict[str, int]  # word -> its row
    matrix: np.ndarray  # (words, dimension) float32
    marked: bool  # whether the words of the file are pieces, which carry the mark of a word's beginning
    n_duplicates: int  # wanted words that came again; the first counts


def layout(path: Path) -> Layout:
    """Words and dimension of a file, from its first line. Raises UserError for what is no text file of vectors."""
    first = next(_lines(path), None)
    if first is None:
        raise UserError(f"{path} is empty: it should hold word vectors")
    parts = first[1].split()
    if len(parts) == 2 and all(part.isdigit() and len(part) < 12 for part in parts) and int(parts[1]):
        return Layout(int(parts[0]), int(parts[1]))
    dimension = sum(1 for _ in takewhile(_is_number, reversed(parts[1:])))
    if not dimension:
        raise UserError(
            f"{path}, line {first[0]} has no numbers: not a file of word vectors, which holds lines of a word and its "
            "numbers (word2vec, GloVe or fastText as text)"
        )
    return Layout(None, dimension)


def read(path: Path, *, wanted: Set[str] | None = None, most: int | None = None) -> WordVectors:
    """The vectors of the words in `wanted` (None: of all words), looked for in the first `most` lines (None: all).

    Raises UserError with the line for a broken one, and for a file that is cut off or holds no vectors.
    """
    n_words, dimension = layout(path)
    rows: dict[str, int] = {}
    vectors: list[np.ndarray] = []
    n_read = n_marked = n_duplicates = 0
    for number, line in _lines(path):
        if number == 1 and n_words is not None:
            continue
        if n_read == most:
            break
        where = f"{path}, line {number}"
        word, numbers = _split(line, dimension, where)
        n_read += 1
        n_marked += word[:1] == MARK and word[1:2].isalnum()
        if word in rows:
            n_duplicates += 1
        elif wanted is None or word in wanted:
            rows[word] = len(rows)
            vectors.append(_numbers(numbers, where))
    else:
        if n_words not in (None, n_read):
            raise UserError(
                f"{path} has {n_read:,} words, its first line says {n_words:,}: if it was cut off, fetch it again; if "
                f"not, make the first line '{n_read} {dimension}'"
            )
    if not n_read:
        raise UserError(f"{path} holds no vectors")
    matrix = np.array(vectors, np.float32).reshape(len(rows), dimension)
    # Not at the first mark: it is a character like others, and vectors of the whole web have words such as ▁▁▁.
    return WordVectors(rows=rows, matrix=matrix, marked=1000 * n_marked >= n_read, n_duplicates=n_duplicates)


def write(file: IO[bytes], words: Iterable[str], matrix: np.ndarray) -> None:
    """As word2vec writes it; each number with just the digits that give the same float32 again."""
    file.write(f"{matrix.shape[0]} {matrix.shape[1]}\n".encode())
    for word, row in zip(words, matrix.astype(np.float32), strict=True):
        file.write(f"{word} {' '.join(row.astype(str))}\n".encode())


def spellings(piece: str, *, marked: bool) -> list[str]:
    """How a file may write a piece, likeliest first; see the top of this module."""
    if marked:
        return [piece]
    word = piece.removeprefix(MARK)
    if not word or (word == piece and is_word_of_letters(word)):
        return []
    return [word, word.lower()]


def is_word_of_letters(word: str) -> bool:
    """Whether it begins with a letter of a script that puts spaces between words."""
    return word[:1].isalpha() and not _UNSPACED.match(word)


def all_spellings(pieces: Iterable[str]) -> set[str]:
    """The words to look for in a file of whichever kind."""
    return {word for piece in pieces for marked in (True, False) for word in spellings(piece, marked=marked)}


def match(pieces: Sequence[str], vectors: WordVectors) -> tuple[np.ndarray, np.ndarray]:
    """A vocabulary's `pieces` by id -> ids (N,) of those that have a vector, ascending, and the vectors (N, D).

    The special ids are nobody's words.
    """
    ids, rows = [], []
    for i, piece in enumerate(pieces):
        found = (vectors.rows.get(word) for word in spellings(piece, marked=vectors.marked))
        row = next((row for row in found if row is not None), None)
        if row is not None and i not in (PAD, UNK, BOS, EOS):
            ids.append(i)
            rows.append(row)
    return np.array(ids, np.int64), vectors.matrix[np.array(rows, np.int64)]


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a text file that are not blank, with their numbers."""
    try:
        with path.open("rb") as packed:
            zipped = packed.peek(2).startswith(_GZIP)
            file = gzip.GzipFile(fileobj=packed) if zipped else packed
            if _NO_TEXT.search(file.peek(4096)[:4096]):
                raise UserError(
                    f"{path} is not text: unpack an archive first, and save a binary .bin as text (with gensim: "
                    "KeyedVectors.load_word2vec_format(FILE, binary=True).save_word2vec_format(NEW_FILE))"
                )
            for number, line in enumerate(iter(lambda: file.readline(_LINE_LIMIT), b""), start=1):
                if len(line) == _LINE_LIMIT:
                    raise UserError(f"{path}, line {number} does not end: not a file of word vectors")
                if line.strip():
                    yield number, line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is damaged or cut off ({error}): fetch it again") from error
    except OSError as error:
        raise UserError(f"cannot read word vectors from {path}: {error.strerror}") from error


def _split(line: bytes, dimension: int, where: str) -> tuple[str, list[bytes]]:
    """A line's word and its `dimension` numbers. GloVe has a few words with spaces in them (". . .")."""
    # As bytes, because there only ASCII counts as space: some words of large files hold spaces of other kinds.
    parts = line.rsplit(None, dimension)
    word, numbers = parts[0], parts[1:]
    rest = word.split()[1:]
    if len(numbers) < dimension or (rest and all(map(_is_number, rest))):
        raise UserError(
            f"{where} has {len(numbers) + len(rest)} numbers, line 1 makes it {dimension}: mend or remove the line, or "
            "fetch the file again"
        )
    return word.decode("utf-8", "replace"), numbers


def _numbers(parts: list[bytes], where: str) -> np.ndarray:
    try:
        numbers = np.array([float(part) for part in parts])
        good = np.abs(numbers) < np.finfo(np.float32).max  # which no NaN is
    except ValueError:
        good = np.array([_is_number(part) for part in parts])
    if not good.all():
        wrong = parts[int(good.argmin())].decode("utf-8", "replace")
        raise UserError(f"{where}: '{wrong}' is not a finite number: mend or remove the line")
    return numbers.astype(np.float32)


def _is_number(part: bytes) -> bool:
    try:
        float(part)
    except ValueError:
        return False
    return True

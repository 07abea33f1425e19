"""Plain files to rows of text: two aligned files, TSV, JSONL; .gz, .bz2, .xz and .zst unpacked on the way.

Knows: lines end at the byte "\\n" and nowhere else (U+2028 or a lone carriage return inside a sentence is
text, and splitting there is how two aligned files drift apart), that a line may be damaged, and that it may
be endless. Bytes that are no UTF-8 come out as lone surrogates, for cleaning to mend and count.
Refuses to know: which rows are worth keeping. Rows come in chunks, so that a file is never whole in memory.
"""

import bz2
import codecs
import gzip
import io
import itertools
import json
import lzma
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from dragoman.data.corpus import MAX_CHARS
from dragoman.errors import UserError, suggest
from dragoman.untrusted import once

CHUNK = 10_000  # rows handled at a time
_CHUNK_CHARS = 16 * 2**20
LINE_LIMIT = 16 * 2**20  # bytes of one line that are kept; far more than MAX_CHARS characters
BOMB_BYTES, BOMB_RATIO = (
    2**30,
    200,
)  # text packs to a third or a tenth; what unpacks to more than both is no text
FORMATS = (".tsv", ".jsonl", ".parquet")
UNPACK: dict[str, Callable[[Path], io.BufferedIOBase]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
PACKINGS = (*UNPACK, ".zst")
# Byte order marks that UTF-8 cannot begin with; the longer ones first, for one of them begins with a shorter one.
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip


class Rows(NamedTuple):
    """Raw sentences, as many on either side; `references` has one list per row, or is None.

    `lines` are those of the file the rows stand on, from 1; None where the corpus has no lines to speak of.
    """

    src: list[str]
    tgt: list[str]
    references: list[list[str]] | None = None
    lines: Sequence[int] | None = None


@dataclass(kw_only=True)
class Columns:
    """Which columns hold the two sides, and what messages call the place they are sought in."""

    src: str
    tgt: str
    where: str

    def missing(self, wanted: str, present: Iterable[str]) -> UserError:
        """The error for a column that is not there."""
        names = list(present)
        return UserError(
            f"{self.where} has no column '{wanted}'{suggest(wanted, names)}; its columns are {', '.join(names)}. Set "
            "data.src and data.tgt, or src_column and tgt_column of the corpus"
        )


def open_bytes(path: Path) -> io.BufferedIOBase:
    """The file's bytes, unpacked where its name ends in .gz, .bz2, .xz or .zst."""
    try:
        if path.suffix in UNPACK:
            return UNPACK[path.suffix](path)
        if path.suffix == ".zst":
            try:
                import zstandard
            except ImportError:
                raise UserError(f"{path} needs zstandard to be read: pip install -e '.[zst]'") from None
            unpacked = zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True)
            return io.BufferedReader(unpacked)
        return path.open("rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def regular(path: Path) -> Path:
    """The path of a file that has a size and an end; a pipe or a device would be waited for, maybe for ever."""
    try:
        if stat.S_ISREG(path.stat().st_mode):
            return path
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    raise UserError(f"{path} is not a regular file: write what it gives into a file first")


def kind_of(path: PurePath) -> str | None:
    """'.tsv', '.jsonl', '.parquet' by a file's name, whatever it is packed in; None for any other."""
    suffix = Path(path.stem).suffix if path.suffix in PACKINGS else path.suffix
    return suffix if suffix in FORMATS else None


def format_of(path: Path) -> str:
    """`kind_of` a corpus in one file, which must be one of these."""
    kind = kind_of(path)
    if kind is None:
        raise UserError(
            f"{path} is of no known kind: a corpus in one file ends in {', '.join(FORMATS)} (and {', '.join(PACKINGS)} "
            "if packed); two aligned text files are named by src_path and tgt_path"
        )
    return kind


def lines(path: Path) -> Iterator[str]:
    """The lines of a file, without their "\\n". Of an endless line the first LINE_LIMIT bytes are given."""
    try:
        with open_bytes(path) as file:
            _refuse_wide(path, file.peek(4))  # type: ignore[attr-defined]
            while line := file.readline(LINE_LIMIT):
                rest = line
                while not rest.endswith(b"\n") and (rest := file.readline(LINE_LIMIT)):
                    pass
                yield line.removesuffix(b"\n").decode(errors="surrogateescape")
    except UserError:
        raise
    except Exception as error:  # each decompressor fails in its own way at a damaged file
        raise UserError(f"cannot read {path}: {error}") from error


def count_lines(path: Path) -> tuple[int, int]:
    """The lines of a file and its bytes once unpacked."""
    n_lines, n_returns, n_bytes, last = 0, 0, 0, b"\n"
    for block in blocks(path):
        if not n_bytes:
            _refuse_wide(path, block)
        n_lines, n_returns = n_lines + block.count(b"\n"), n_returns + block.count(b"\r")
        n_bytes, last = n_bytes + len(block), block[-1:]
    if n_returns > max(2, 10 * n_lines):  # far more than there are lines: then they are what ends them
        raise UserError(f"{path} ends its lines by CR alone, as an old Mac; convert it: tr '\\r' '\\n'")
    return n_lines + (last != b"\n"), n_bytes


def blocks(path: Path) -> Iterator[bytes]:
    """A file's bytes once unpacked, a piece at a time; what unpacks to far more than any text is refused."""
    try:
        with open_bytes(path) as file:
            packed, unpacked = path.stat().st_size, 0
            while block := file.read(2**20):
                unpacked += len(block)
                _refuse_bomb(path, packed, unpacked)
                yield block
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _refuse_wide(path: Path, head: bytes) -> None:
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            raise UserError(f"{path} is {encoding}; convert it: iconv -f {encoding} -t UTF-8")


def _refuse_bomb(path: Path, packed: int, unpacked: int) -> None:
    if unpacked > max(BOMB_BYTES, BOMB_RATIO * packed):
        raise UserError(
            f"{path} unpacks to more than {BOMB_RATIO} times its {packed:,} bytes: that is no text. Is it a zip bomb?"
        )


def _chunks(pairs: Iterable[tuple[str, str]], line: int = 1) -> Iterator[Rows]:
    """The pairs of a file that has one on each line, from `line` on: by the CHUNK, fewer where they are long, for a
    small packed file may hold gigabytes."""
    src: list[str] = []
    tgt: list[str] = []
    n_chars = 0
    for pair in pairs:
        for side, text in zip((src, tgt), pair, strict=True):
            side.append(text[: MAX_CHARS + 1])
            n_chars += len(side[-1])
        if len(src) == CHUNK or n_chars > _CHUNK_CHARS:
            yield Rows(src, tgt, lines=range(line, line + len(src)))
            line += len(src)
            src, tgt, n_chars = [], [], 0
    if src:
        yield Rows(src, tgt, lines=range(line, line + len(src)))


def read_aligned(src: Path, tgt: Path) -> Iterator[Rows]:
    """Line i of one file translates line i of the other."""
    return _chunks(zip(lines(src), lines(tgt), strict=True))


def check_aligned(src: Path, tgt: Path) -> tuple[int, int]:
    """The number of lines and of bytes of two aligned files.

    Raises `UserError` with both counts where they differ, and says where the files begin to drift.
    """
    (n_src, src_bytes), (n_tgt, tgt_bytes) = count_lines(src), count_lines(tgt)
    if n_src != n_tgt:
        drift = drift_line(_lengths(src, n_src), _lengths(tgt, n_tgt))
        raise UserError(
            f"{src} has {n_src} lines and {tgt} has {n_tgt}: they cannot be aligned. Judging by the lengths of the "
            f"lines they begin to drift near line {drift}; mend one of the files there"
        )
    return n_src, src_bytes + tgt_bytes


def _lengths(path: Path, n_lines: int) -> np.ndarray:
    return np.fromiter(map(len, lines(path)), np.float32, n_lines)


def drift_line(src: np.ndarray, tgt: np.ndarray) -> int:
    """The line (from 1) at which one of two aligned files probably lost or gained lines.

    Translations of each other have similar log length, up to a constant. Suppose all |n_src - n_tgt| surplus
    lines of the longer file stand at one place p: before p the files match line by line, after p they match
    shifted. The p of the least total mismatch is found for all p at once by two cumulative sums.
    """
    shorter, longer = (src, tgt) if len(src) <= len(tgt) else (tgt, src)
    if not len(shorter):
        return 1
    constant = np.log((longer.mean() + 1) / (shorter.mean() + 1))
    expected = np.log(shorter + 1) + constant
    straight = np.abs(expected - np.log(longer[: len(shorter)] + 1))
    shifted = np.abs(expected - np.log(longer[len(longer) - len(shorter) :] + 1))
    mismatch = np.concatenate([[0], np.cumsum(straight - shifted, dtype=np.float64)])
    return int(mismatch.argmin()) + 1


def read_tsv(path: Path, columns: Columns, named: bool) -> Iterator[Rows]:
    """Tab-separated lines, quotes being text like any other.

    The first line is a header where it names both columns; otherwise, unless the configuration has `named`
    the columns, the first two columns are the two sides. A line with too few columns has empty sides.
    """

    rows: Iterator[list[str]] = (line.split("\t") for line in lines(path))
    first = next(rows, None)
    if first is None:
        return
    header = [name.strip("\ufeff \r") for name in first]
    is_header = columns.src in header and columns.tgt in header
    if is_header:
        src, tgt = header.index(columns.src), header.index(columns.tgt)
    elif named:
        raise columns.missing(columns.tgt if columns.src in header else columns.src, header)
    else:
        if len(first) < 2:
            raise UserError(f"{path}, line 1 has no tab: a TSV corpus has the two sides in two columns")
        src, tgt, rows = 0, 1, itertools.chain([first], rows)
    pairs = ((row[src] if src < len(row) else "", row[tgt] if tgt < len(row) else "") for row in rows)
    yield from _chunks(pairs, line=2 if is_header else 1)


def read_jsonl(path: Path, columns: Columns) -> Iterator[Rows]:
    """One JSON object per line: a `translation` object or flat keys, perhaps `references`; blank lines are none."""
    found: list[tuple[str, str, list[str], int]] = []
    any_references, n_chars = False, 0
    for number, line in enumerate(lines(path), 1):
        if len(line) > LINE_LIMIT // 8:  # cut short, or absurd: given as what it is, too long a sentence
            found.append((line[: MAX_CHARS + 1], line[: MAX_CHARS + 1], [], number))
        elif line.strip("\ufeff\r "):
            row = _json_row(line, f"{path}, line {number}")
            src, tgt = _json_sides(row, columns, f"{path}, line {number}")
            listed = row.get("references")
            references = (
                [text for text in listed if isinstance(text, str)] if isinstance(listed, list) else []
            )
            any_references |= bool(references)
            found.append((src, tgt, references, number))
        n_chars += len(line)
        if len(found) == CHUNK or n_chars > _CHUNK_CHARS:
            yield _rows(found, any_references)
            found, n_chars = [], 0
    if found:
        yield _rows(found, any_references)


def _json_row(line: str, where: str) -> dict[str, Any]:
    try:
        row = _JSON.decode(line.lstrip("\ufeff"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {error}") from error
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error
    if not isinstance(row, dict):
        raise UserError(f"{where} is not a JSON object: each line is to be one, with a key per side")
    return row


# Numbers are never text: as floats they cost little however many digits they have.
_JSON = json.JSONDecoder(object_pairs_hook=once, parse_int=float)


def _json_sides(row: dict[str, Any], columns: Columns, where: str) -> list[str]:
    """The two sides of a row, no more of them than the first character too many; null is an empty one."""
    sides = row.get("translation", row)
    if not isinstance(sides, dict):
        if columns.src not in row or columns.tgt not in row:
            raise UserError(f"{where}: 'translation' holds {_a(sides)}, not an object with a key per side")
        sides = row
    texts = []
    for wanted in (columns.src, columns.tgt):
        if wanted not in sides:
            raise replace(columns, where=where).missing(wanted, sides)
        text = sides[wanted]
        if not (isinstance(text, str) or text is None):
            raise UserError(f"{where}: '{wanted}' holds {_a(text)}, not text")
        texts.append((text or "")[: MAX_CHARS + 1])
    return texts


def _a(value: Any) -> str:
    """What a value of JSON is, in words."""
    names = {dict: "an object", list: "a list", str: "text", float: "a number", bool: "true or false"}
    return names.get(type(value), "null")


def _rows(found: list[tuple[str, str, list[str], int]], any_references: bool) -> Rows:
    src, tgt, references, numbers = (list(column) for column in zip(*found, strict=True))
    return Rows(src, tgt, references if any_references else None, numbers)

"""Readers of corpus files.

READERS holds one function per suffix; each takes a path and columns and yields Rows. A new format needs one function
and one entry; plain files, gzip files and folders then work, and errors of a library become one line.
"""

import glob
import gzip
import random
import re
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pyarrow as pa

from dragoman.data.text import MAX_CHARS, check_aligned, lines
from dragoman.errors import UserError, suggest
from dragoman.languages import primary

# Rows per chunk.
CHUNK = 10_000


class Rows(NamedTuple):
    """Raw sentences of both sides; `references`: one list per row, or None."""

    src: list[str]
    tgt: list[str]
    references: list[list[str]] | None = None


@dataclass(frozen=True)
class Columns:
    """The columns of the two sides; `where` names their table in messages."""

    src: str
    tgt: str
    where: str
    configured: bool = False  # named by the user; a TSV file must then have a header

    def missing(self, names: list[str]) -> UserError:
        """Return the error for a table that has only the columns `names`."""
        name = self.tgt if self.src in names else self.src
        return UserError(
            f"{self.where}: no column '{name}'{suggest(name, names)} (found {', '.join(names)}). "
            "Set data.src and data.tgt (doctor.py: --src, --tgt), or src_column and tgt_column of the corpus"
        )


def chunks(rows: Iterator[tuple[str, str]]) -> Iterator[Rows]:
    while chunk := list(islice(rows, CHUNK)):
        # One extra character, so that cleaning recognises a text that is too long.
        src, tgt = ([text[: MAX_CHARS + 1] for text in side] for side in zip(*chunk, strict=True))
        yield Rows(src, tgt)


def read_aligned(src: Path, tgt: Path, *, check: bool = True) -> Iterator[Rows]:
    """Read two aligned text files; `check` raises UserError for unequal line counts."""
    if check:
        check_aligned(src, tgt)
    yield from chunks(zip(lines(src), lines(tgt), strict=False))


def read_tsv(path: Path, columns: Columns) -> Iterator[Rows]:
    """Read tab-separated values without quoting, with or without a header.

    A first row that names both columns is a header. Without one, the first two columns are the sides, unless the
    configuration names columns. A missing cell is an empty text.
    """
    table: Iterator[list[str]] = (line.split("\t") for line in lines(path))
    first = next(table, None)
    if first is None:
        return
    header = [name.strip("\ufeff \r") for name in first]
    if columns.src in header and columns.tgt in header:
        src, tgt = header.index(columns.src), header.index(columns.tgt)
    elif columns.configured or len(first) < 2:
        raise columns.missing(header)
    else:
        src, tgt, table = 0, 1, chain([first], table)
    padded = (cells + [""] * (max(src, tgt) + 1 - len(cells)) for cells in table)
    yield from chunks((cells[src], cells[tgt]) for cells in padded)


def read_arrow(path: Path, columns: Columns) -> Iterator[Rows]:
    """Read a JSONL or parquet file, by `datasets`.

    A line of JSONL is an object with flat keys or a `translation` object, and optionally a list `references`. Keys
    must appear in the first 10 MB.
    """
    # Slow to import.
    import datasets

    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)
    library = datasets.IterableDataset
    load = library.from_json if suffix_of(path) == ".jsonl" else library.from_parquet
    try:
        # The library expands patterns in names.
        for table in load(glob.escape(str(path))).with_format("arrow").iter(CHUNK):
            yield arrow_rows(table, columns)
    except StopIteration:
        # The file is empty.
        return


def arrow_rows(table: pa.Table, columns: Columns) -> Rows:
    """Return an Arrow table of flat columns, or of a `translation` column, as rows."""
    flat = table.flatten() if "translation" in table.column_names else table
    flat = flat.rename_columns([name.removeprefix("translation.") for name in flat.column_names])
    if {columns.src, columns.tgt} - {*flat.column_names}:
        raise columns.missing(flat.column_names)

    def texts(name: str, types: str = r"(large_)?string|null") -> list[Any]:
        column = flat.column(name)
        if not re.fullmatch(types, str(column.type)):
            raise UserError(f"{columns.where}: column '{name}' is not text (found {column.type})")
        return column.to_pylist()

    src, tgt = ([(text or "")[: MAX_CHARS + 1] for text in texts(name)] for name in (columns.src, columns.tgt))
    if "references" not in flat.column_names:
        return Rows(src, tgt)
    references = texts("references", r"null|(large_)?list<\w+: ((large_)?string|null)>")
    return Rows(src, tgt, [list(filter(None, listed or [])) for listed in references])


def read_tmx(path: Path, columns: Columns) -> Iterator[Rows]:
    """Read a translation memory (TMX 1.4); en-US counts as the column en."""
    yield from chunks(_units(path, columns))


def _units(path: Path, columns: Columns) -> Iterator[tuple[str, str]]:
    src, tgt = primary(columns.src), primary(columns.tgt)
    languages: set[str] = set()
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for _, element in ElementTree.iterparse(file):
            if element.tag in ("bpt", "ept", "it", "ph", "ut"):
                element.text = None  # markup, such as <b>, of the original document
            if element.tag != "tu":
                continue
            texts: dict[str, str] = {}
            for variant in element.iter("tuv"):
                code = variant.get("{http://www.w3.org/XML/1998/namespace}lang") or variant.get("lang") or ""
                (segment,) = variant.iter("seg")
                texts.setdefault(primary(code), "".join(segment.itertext()))
            languages |= texts.keys()
            if {src, tgt} <= texts.keys():
                yield texts[src], texts[tgt]
            element.clear()
    if not {src, tgt} <= languages:
        raise columns.missing(sorted(languages))


def copy_task() -> Iterator[Rows]:
    """Yield rows of 3 to 15 random letters on both sides, the same in every run."""
    rng = random.Random("copy")
    texts = [" ".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 15))) for _ in range(20_000)]
    yield Rows(texts, texts)


Reader = Callable[[Path, Columns], Iterator[Rows]]
READERS: dict[str, Reader] = {".tsv": read_tsv, ".jsonl": read_arrow, ".parquet": read_arrow, ".tmx": read_tmx}


def suffix_of(path: Path) -> str:
    """Return the suffix that selects the reader of a file, .gz ignored."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix

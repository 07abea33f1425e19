"""Readers of corpus files, and corpora by their configuration.

READERS holds one function per suffix; each takes a path and columns and yields Rows. A new format needs one function
and one entry; plain files, gzip files and folders then work.
"""

import glob
import gzip
import json
import logging
import os
import random
import re
import string
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pyarrow as pa

from dragoman.config import CorpusConfig
from dragoman.data import hub
from dragoman.data.lines import check_aligned, lines
from dragoman.data.text import MAX_CHARS
from dragoman.errors import UserError, suggest
from dragoman.files import shipped
from dragoman.languages import primary

# Rows per chunk.
CHUNK = 10_000
ROOT_VARIABLE = "DRAGOMAN_DATA"
# Rows of the generated corpus `copy`.
_N_COPIES = 20_000


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
            "Set data.src and data.tgt, or src_column and tgt_column of the corpus"
        )


def _chunks(rows: Iterator[tuple[str, str]]) -> Iterator[Rows]:
    while chunk := list(islice(rows, CHUNK)):
        # One extra character, so that cleaning recognises a text that is too long.
        src, tgt = ([text[: MAX_CHARS + 1] for text in side] for side in zip(*chunk, strict=True))
        yield Rows(src, tgt)


def read_aligned(src: Path, tgt: Path, *, check: bool = True) -> Iterator[Rows]:
    """Read two aligned text files; `check` raises UserError for unequal line counts."""
    if check:
        check_aligned(src, tgt)
    yield from _chunks(zip(lines(src), lines(tgt), strict=False))


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
    yield from _chunks((cells[src], cells[tgt]) for cells in padded)


def read_arrow(path: Path, columns: Columns) -> Iterator[Rows]:
    """Read a JSONL or parquet file, by `datasets`.

    A line of JSONL is an object with flat keys or a `translation` object, and optionally a list `references`. Keys
    must appear in the first 10 MB.
    """
    # Slow to import.
    import datasets

    datasets.utils.logging.set_verbosity(logging.CRITICAL)
    library = datasets.IterableDataset
    load = library.from_json if suffix_of(path) == ".jsonl" else library.from_parquet
    try:
        # The library expands patterns in names.
        for table in load(glob.escape(str(path))).with_format("arrow").iter(CHUNK):
            yield arrow_rows(table, columns)
    except StopIteration:
        # The file is empty.
        return
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8. Convert it, e.g. by iconv -f GB18030 -t UTF-8") from error
    except (OSError, ValueError, TypeError, EOFError, zlib.error, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read as {suffix_of(path)} ({error})") from error


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

    def units() -> Iterator[tuple[str, str]]:
        found: set[str] = set()
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for _, element in ElementTree.iterparse(file):
                if element.tag != "tu":
                    continue
                texts: dict[str, str] = {}
                for variant in element.iter("tuv"):
                    code = variant.get("{http://www.w3.org/XML/1998/namespace}lang") or variant.get("lang") or ""
                    texts.setdefault(primary(code), "".join(variant.find("seg").itertext()))  # type: ignore[union-attr]
                found |= texts.keys()
                if {src, tgt} <= texts.keys():
                    yield texts[src], texts[tgt]
                element.clear()
        if not {src, tgt} <= found:
            raise columns.missing(sorted(found))

    src, tgt = primary(columns.src), primary(columns.tgt)
    try:
        yield from _chunks(units())
    except (ElementTree.ParseError, AttributeError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a translation memory, or damaged ({error})") from error


def _copies() -> Iterator[tuple[str, str]]:
    """Yield the copy task: 3 to 15 random letters, the same in every run."""
    rng = random.Random("copy")
    for _ in range(_N_COPIES):
        text = " ".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 15)))
        yield text, text


Reader = Callable[[Path, Columns], Iterator[Rows]]
READERS: dict[str, Reader] = {".tsv": read_tsv, ".jsonl": read_arrow, ".parquet": read_arrow, ".tmx": read_tmx}


def suffix_of(path: Path) -> str:
    """Return the suffix that selects the reader of a file, .gz ignored."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


@dataclass(frozen=True)
class Corpus:
    """An existing corpus; equal keys mean equal content. `open` returns rows by split."""

    config: CorpusConfig
    key: str
    open: Callable[[], dict[str, Iterator[Rows]]]


class NotFoundError(UserError):
    """Error for a corpus that does not exist or cannot be reached."""


def find(config: CorpusConfig, src: str, tgt: str, root: str | None = None, *, check_lines: bool = True) -> Corpus:
    """Return the corpus of a configuration, or raise NotFoundError.

    Without `check_lines`, extra lines of one of two aligned files are dropped.
    """
    configured = bool(config.src_column or config.tgt_column)
    columns = Columns(config.src_column or src, config.tgt_column or tgt, config.label, configured)
    path, split = config.path or "", config.split
    if config.src_path and config.tgt_path:
        pair = locate(config.src_path, root), locate(config.tgt_path, root)
        return Corpus(config, _key({split: pair}, columns), lambda: {split: read_aligned(*pair, check=check_lines)})
    if path == "copy":
        return Corpus(config, f"copy {_N_COPIES}", lambda: {"train": _chunks(_copies())})
    try:
        local = locate(path, root)
    except NotFoundError as error:
        if not hub.is_hub_name(path):
            raise
        return _on_hub(config, columns, error)
    if config.name:
        raise UserError(f"{local}: a local corpus has no configurations (found name={config.name}). Name a subfolder")
    if local.is_dir():
        splits = hub.folder_splits(local, lambda file: suffix_of(file) in READERS)
    elif suffix_of(local) in READERS:
        splits = {split: [local]}
    else:
        raise UserError(
            f"{local}: no reader for '{suffix_of(local)}' files. A corpus in one file ends in {', '.join(READERS)} "
            "(or with .gz after it); two aligned text files are named by src_path and tgt_path"
        )
    key = _key(splits, columns)
    return Corpus(config, key, lambda: {split: _read(files, columns) for split, files in splits.items()})


def _read(files: list[Path], columns: Columns) -> Iterator[Rows]:
    for file in files:
        yield from READERS[suffix_of(file)](file, replace(columns, where=str(file)))


def locate(path: str, root: str | None = None) -> Path:
    """Return an existing path: `path`, below `root` or $DRAGOMAN_DATA, or shipped."""
    root = root or os.environ.get(ROOT_VARIABLE)
    places = [Path(path).expanduser()]
    places += [Path(root).expanduser() / path] if root else []
    places += [shipped(path)] if path.startswith("data/phrasebook") else []
    for place in places:
        if place.exists():
            return place
    near = suggest(path, [file.name for file in Path(root).expanduser().glob("*")] if root else [])
    hint = "" if root else f". data.root or the variable {ROOT_VARIABLE} can name a folder of corpora"
    searched = ", ".join(str(place.absolute()) for place in places)
    raise NotFoundError(f"data.corpora: no '{path}'{near}; searched {searched}{hint}")


def _key(splits: Mapping[str, Iterable[Path]], columns: Columns) -> str:
    """Return a key of the files of each split: path, size and modification time."""

    def identify(file: Path) -> list[Any]:
        return [str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns]

    stats = {split: list(map(identify, files)) for split, files in splits.items()}
    return json.dumps([columns.src, columns.tgt, stats])


def _on_hub(config: CorpusConfig, columns: Columns, missing: UserError) -> Corpus:
    try:
        splits = hub.load(config.path or "", config.name)
    except UserError as error:
        raise NotFoundError(str(error) if config.optional else f"{error} ({missing})") from error

    def rows_of(split: Any) -> Iterator[Rows]:
        return (arrow_rows(table, columns) for table in split.with_format("arrow").iter(CHUNK))

    key = json.dumps([columns.src, columns.tgt, {split: rows._fingerprint for split, rows in splits.items()}])
    return Corpus(config, key, lambda: {split: rows_of(rows) for split, rows in splits.items()})

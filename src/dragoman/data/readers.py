"""Corpora: files, folders and Hugging Face datasets, read in chunks of rows.

READERS holds one function per suffix; each takes a path and columns and yields rows: (source, target), or these two and
a list of references. A new format needs one function and one entry; plain files, gzip files and folders then work, and
errors of a library become one line.
"""

import glob
import gzip
import os
import random
import re
import string
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from dragoman.config import CorpusConfig
from dragoman.data.text import MAX_CHARS, SPLITS, check_aligned, lines
from dragoman.errors import UserError, suggest
from dragoman.files import included
from dragoman.languages import primary, variant

CHUNK = 10_000  # rows
ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}


class Rows(NamedTuple):
    """Raw sentences of both sides; `references`: one list per row, or None."""

    src: list[str]
    tgt: list[str]
    references: list[list[str]] | None = None


class Columns(NamedTuple):
    """The columns of the two sides; `where` names their table in messages."""

    src: str
    tgt: str
    where: object = "table"
    configured: bool = False  # named by the user; a TSV file must then have a header

    def missing(self, names: list[str]) -> UserError:
        """Return the error for a table that has only the columns `names`."""
        name = self.tgt if self.src in names else self.src
        return UserError(
            f"{self.where}: no column '{name}'{suggest(name, names)} (found {', '.join(names)}). "
            "Set data.src and data.tgt (doctor.py: --src, --tgt), or src_column and tgt_column (--src-column ...)"
        )


def read_tsv(path: Path, columns: Columns) -> Iterator[tuple[str, str]]:
    """Read tab-separated values without quoting, with or without a header.

    A first row that names both columns is a header; EN, en-US and English also name en. Without one, the first two
    columns are the sides, unless the configuration names columns. A missing cell is an empty text.
    """
    table: Iterator[list[str]] = (line.split("\t") for line in lines(path))
    if first := next(table, None):
        header, src, tgt = [name.strip("\ufeff \r") for name in first], 0, 1
        sides, names = [columns.src, columns.tgt], header
        if not columns.configured and not {*sides} <= {*header}:
            sides, names = ([primary(name) for name in each] for each in (sides, header))
        if len({*sides} & {*names}) == 2:
            src, tgt = map(names.index, sides)
        elif len(first) < 2:
            raise UserError(f"{path}: no tab in line 1. Separate the columns by tabs")
        elif columns.configured or {*sides} & {*header}:
            raise columns.missing(header)
        else:
            table = chain([first], table)
        for cells in table:
            cells += [""] * (max(src, tgt) + 1 - len(cells))
            yield cells[src], cells[tgt]


def read_arrow(path: Path, columns: Columns) -> Iterator[tuple[Any, ...]]:
    """Read a JSONL or parquet file, by `datasets`.

    A line of JSONL is an object with flat keys or a `translation` object, and optionally a list `references`. Keys
    must appear in the first 10 MB.
    """
    # Slow to import.
    import datasets

    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)
    load = datasets.IterableDataset.from_json if suffix_of(path) == ".jsonl" else datasets.IterableDataset.from_parquet
    # The library expands patterns in names.
    if path.stat().st_size:
        yield from arrow_rows(load(glob.escape(str(path))), columns)


def arrow_rows(dataset: Any, columns: Columns) -> Iterator[tuple[Any, ...]]:
    """Read a dataset of flat columns, or of a `translation` column."""
    for table in dataset.with_format("arrow").iter(CHUNK):
        flat = table.flatten() if "translation" in table.column_names else table
        flat = flat.rename_columns([name.removeprefix("translation.") for name in flat.column_names])
        if {columns.src, columns.tgt} - {*flat.column_names}:
            raise columns.missing(flat.column_names)
        types = dict.fromkeys((columns.src, columns.tgt), r"(large_)?string|null")
        if "references" in flat.column_names:
            types["references"] = r"null|(large_)?list<\w+: ((large_)?string|null)>"
        for name, text in types.items():
            if not re.fullmatch(text, kind := str(flat.column(name).type)):
                raise UserError(f"{columns.where}: column '{name}' is {kind}, not text ('references': lists of text)")
        yield from zip(*(flat.column(name).to_pylist() for name in types), strict=True)


def read_tmx(path: Path, columns: Columns) -> Iterator[tuple[str, str]]:
    """Read a translation memory (TMX 1.4); en-US counts as the column en."""
    src, tgt = primary(columns.src), primary(columns.tgt)
    wanted, languages = {variant(columns.src), variant(columns.tgt)}, set[str]()
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for _, element in ElementTree.iterparse(file):
            if element.tag in ("bpt", "ept", "it", "ph", "ut"):
                element.text = None  # markup, such as <b>, of the original document
            if element.tag != "tu":
                continue
            texts: dict[str, str] = {}
            for tuv in element.iter("tuv"):
                code = tuv.get("{http://www.w3.org/XML/1998/namespace}lang") or tuv.get("lang") or ""
                (segment,) = tuv.iter("seg")
                if primary(code) not in texts or variant(code) in wanted:  # zh-TW after zh-CN
                    texts[primary(code)] = "".join(segment.itertext())
            languages |= texts.keys()
            if {src, tgt} <= texts.keys():
                yield texts[src], texts[tgt]
            element.clear()
    if not {src, tgt} <= languages:
        raise columns.missing(sorted(languages))


READERS: dict[str, Callable[[Path, Columns], Iterator[tuple[Any, ...]]]] = {
    ".tsv": read_tsv, ".jsonl": read_arrow, ".parquet": read_arrow, ".tmx": read_tmx,
}  # fmt: skip


def suffix_of(path: Path) -> str:
    """Return the suffix that selects the reader of a file, .gz ignored."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


@dataclass(frozen=True)
class Corpus:
    """A corpus that exists, and how to read it."""

    config: CorpusConfig
    key: list[Any]  # plain data; equal keys mean equal content
    open: Callable[[], dict[str, Iterator[Rows]]]  # split -> its rows in chunks, from the beginning


class NotFoundError(UserError):
    """Error for a corpus that does not exist or cannot be reached."""


def find(config: CorpusConfig, src: str, tgt: str, root: str | None = None, *, check_lines: bool = True) -> Corpus:
    """Return the corpus of a configuration. Raises NotFoundError if there is none.

    Without `check_lines`, if one of two aligned files is longer, its extra lines are dropped.
    """
    configured = bool(config.src_column or config.tgt_column)
    columns = Columns(config.src_column or src, config.tgt_column or tgt, config.label, configured)
    path, split = config.path or "", config.split
    if config.src_path and config.tgt_path:
        pair = [locate(config.src_path, root), locate(config.tgt_path, root)]
        return Corpus(config, _key({split: pair}, columns), lambda: {split: _read_aligned(*pair, check=check_lines)})
    if path == "copy":
        return Corpus(config, ["copy"], lambda: {"train": _chunks(_copy_task())})
    try:
        local = locate(path, root)
    except NotFoundError as error:
        if suffix_of(Path(path)) in READERS or not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path):
            raise
        return _on_hub(config, columns, "" if config.optional else f" ({error})")
    if local.is_dir():
        splits = _in_folder(local)
    elif suffix_of(local) in READERS:
        splits = {split: [local]}
    else:
        raise UserError(
            f"{local}: no reader for '{suffix_of(local)}' files. A corpus in one file ends in {', '.join(READERS)} "
            "(or with .gz after it); two aligned text files are named by src_path and tgt_path"
        )
    return Corpus(config, _key(splits, columns), lambda: {name: _read(each, columns) for name, each in splits.items()})


def _read_aligned(src: Path, tgt: Path, *, check: bool) -> Iterator[Rows]:
    if check:
        check_aligned(src, tgt)
    yield from _chunks(zip(lines(src), lines(tgt), strict=False))


def _read(files: list[Path], columns: Columns) -> Iterator[Rows]:
    for file in files:
        try:
            yield from _chunks(READERS[suffix_of(file)](file, columns._replace(where=file)))
        # The XML parser raises SyntaxError.
        except (OSError, EOFError, ValueError, TypeError, LookupError, RuntimeError, SyntaxError, zlib.error) as error:
            reason = re.sub(r" in row \d+", "", str(error))  # of a block of the file
            raise UserError(f"{file}: cannot be read as {suffix_of(file)} ({reason})") from error


def _chunks(rows: Iterable[tuple[Any, ...]]) -> Iterator[Rows]:
    remaining = iter(rows)
    while chunk := list(islice(remaining, CHUNK)):
        src, tgt, *references = zip(*chunk, strict=True)
        # CRLF and a byte order mark are no faults. One extra character, so that cleaning recognises an overlong text.
        sources, targets = ([(text or "").strip("\ufeff\r")[: MAX_CHARS + 1] for text in side] for side in (src, tgt))
        yield Rows(sources, targets, [[*filter(None, texts or ())] for texts in references[0]] if references else None)


def _copy_task() -> Iterator[tuple[str, str]]:
    """Return 20,000 rows of 3 to 15 random letters, the same in every run."""
    rng = random.Random("copy")
    texts = (" ".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 15))) for _ in range(20_000))
    return ((text, text) for text in texts)


def locate(path: str, root: str | None = None) -> Path:
    """Return the first place where `path` exists. Raises NotFoundError if none does.

    The places: `path` itself, `path` below `root` (or below $DRAGOMAN_DATA), and the included phrasebook.
    """
    folder = Path(root or os.environ.get("DRAGOMAN_DATA", "")).expanduser()
    places = [Path(path).expanduser(), folder / path, *([included(path)] if path.startswith("data/phrasebook") else [])]
    if found := next(filter(Path.exists, places), None):
        return found
    near = suggest(path, [file.name for file in folder.glob("*")])
    searched = ", ".join(dict.fromkeys(str(place.absolute()) for place in places))
    raise NotFoundError(
        f"data.corpora: no '{path}'{near}; searched {searched}. data.root or DRAGOMAN_DATA can name a folder of corpora"
    )


def _key(splits: Mapping[str, list[Path]], columns: Columns) -> list[Any]:
    """Return a key of the columns and of each file's path, size and modification time."""
    files = [(split, file.resolve(), file.stat()) for split, files in splits.items() for file in files]
    stats = [(split, str(path), stat.st_size, stat.st_mtime_ns) for split, path, stat in files]
    return [columns.src, columns.tgt, *stats]


def _in_folder(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split of a folder, by the rules of `datasets`.

    The names of subfolders give the splits, otherwise the names of files. If no name contains a split, all files are
    training data. Only local files are read and no code is run. Settings in a README.md are ignored.
    """
    from datasets.data_files import DataFilesDict, get_data_patterns

    try:
        resolved = DataFilesDict.from_patterns(get_data_patterns(str(folder)), str(folder))
    except FileNotFoundError as error:
        raise UserError(f"{folder}: {error}") from error
    splits = {
        split: [path for path in map(Path, dict.fromkeys(paths)) if suffix_of(path) in READERS]
        for split, paths in resolved.items()
    }
    return _standard_splits(str(folder), splits)


def _standard_splits(where: str, splits: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the splits to train, validation and test; drop all others and empty ones."""
    named = {ALIASES.get(split, split): content for split, content in splits.items() if content}
    if not named.keys() & set(SPLITS):
        raise UserError(f"{where}: no split {', '.join(SPLITS)} (found {', '.join(named) or 'no corpus file'})")
    return {split: named[split] for split in SPLITS if split in named}


def _on_hub(config: CorpusConfig, columns: Columns, local_error: str) -> Corpus:
    """Return a dataset of the Hugging Face hub, or its copy in the cache if offline.

    If there is neither, the error message ends with `local_error`, why no local corpus was found.
    """
    import datasets

    hub, problem = datasets.config.HF_ENDPOINT, ""
    try:
        # Tested first, because `datasets` tries again for a long time.
        if not datasets.config.HF_HUB_OFFLINE:
            urllib.request.urlopen(f"{hub}/api/datasets/{config.path}", timeout=5).close()
    except OSError as error:
        # With an HTTPError the hub answers, and `datasets` reports what is wrong with the dataset.
        if not isinstance(error, urllib.error.HTTPError):
            datasets.config.HF_HUB_OFFLINE, problem = True, f"the hub {hub} cannot be reached: {error}"
    try:
        loaded = datasets.load_dataset(config.path, config.name)
    # The library raises many kinds of exceptions.
    except Exception as error:
        problem = problem or f"cannot be loaded from the hub ({str(error)[:500]})"
        raise NotFoundError(f"{config.label}: {problem}{local_error}") from error
    splits = _standard_splits(config.label, loaded)
    key = [columns.src, columns.tgt, {split: dataset._fingerprint for split, dataset in splits.items()}]
    return Corpus(config, key, lambda: {split: _chunks(arrow_rows(rows, columns)) for split, rows in splits.items()})

"""Corpora of a configuration: files, folders and Hugging Face datasets."""

import os
import re
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from dragoman.config import CorpusConfig
from dragoman.data import readers
from dragoman.data.readers import READERS, Columns, Rows, read_aligned, suffix_of
from dragoman.data.text import SPLITS
from dragoman.errors import UserError, suggest
from dragoman.files import included

T = TypeVar("T")
ROOT_VARIABLE = "DRAGOMAN_DATA"
ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}


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
        pair = locate(config.src_path, root), locate(config.tgt_path, root)
        return Corpus(config, _key({split: pair}, columns), lambda: {split: read_aligned(*pair, check=check_lines)})
    if path == "copy":
        return Corpus(config, ["copy"], lambda: {"train": readers.copy_task()})
    try:
        local = locate(path, root)
    except NotFoundError as error:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path):
            raise
        return _on_hub(config, columns, "" if config.optional else f" ({error})")
    if config.name:
        raise UserError(f"{local}: a local corpus has no configurations (found name={config.name}). Name a subfolder")
    if local.is_dir():
        splits = _in_folder(local)
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
        try:
            yield from READERS[suffix_of(file)](file, replace(columns, where=str(file)))
        # The XML parser raises SyntaxError.
        except (OSError, EOFError, ValueError, TypeError, SyntaxError, zlib.error, pa.ArrowException) as error:
            raise UserError(f"{file}: cannot be read as {suffix_of(file)} ({error})") from error


def locate(path: str, root: str | None = None) -> Path:
    """Return the first place where `path` exists. Raises NotFoundError if none does.

    The places: `path` itself, `path` below `root` (or below $DRAGOMAN_DATA), and the included phrasebook.
    """
    root = root or os.environ.get(ROOT_VARIABLE)
    folders = [Path(root).expanduser()] if root else []
    places = [Path(path).expanduser(), *(folder / path for folder in folders)]
    if path.startswith("data/phrasebook"):
        places.append(included(path))
    for place in places:
        if place.exists():
            return place
    near = suggest(path, [file.name for folder in folders for file in folder.glob("*")])
    hint = "" if root else f". data.root or the variable {ROOT_VARIABLE} can name a folder of corpora"
    searched = ", ".join(str(place.absolute()) for place in places)
    raise NotFoundError(f"data.corpora: no '{path}'{near}; searched {searched}{hint}")


def _key(splits: Mapping[str, Iterable[Path]], columns: Columns) -> list[Any]:
    """Return a key of the columns and of each file's path, size and modification time."""
    stats = {
        split: [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        for split, files in splits.items()
    }
    return [columns.src, columns.tgt, stats]


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
    splits: dict[str, list[Path]] = {}
    for split, paths in resolved.items():
        if readable := [path for path in map(Path, dict.fromkeys(paths)) if suffix_of(path) in READERS]:
            splits[split] = readable
    return _standard_splits(str(folder), splits)


def _standard_splits(where: str, splits: Mapping[str, T]) -> dict[str, T]:
    """Rename the splits to train, validation and test, and drop all others."""
    named = {ALIASES.get(split, split): content for split, content in splits.items()}
    if not named.keys() & set(SPLITS):
        raise UserError(f"{where}: no split {', '.join(SPLITS)} (found {', '.join(named) or 'no corpus file'})")
    return {split: named[split] for split in SPLITS if split in named}


def _on_hub(config: CorpusConfig, columns: Columns, local_error: str) -> Corpus:
    """Return a dataset of the Hugging Face hub, or its copy in the cache if offline.

    If there is neither, the error message ends with `local_error`, why no local corpus was found.
    """
    assert config.path
    reason = unreachable(config.path)
    import datasets

    datasets.config.HF_HUB_OFFLINE = reason is not None
    try:
        loaded = datasets.load_dataset(config.path, config.name)
    # The library raises many kinds of exceptions.
    except Exception as error:
        problem = reason or f"cannot be loaded from the hub ({str(error)[:500]})"
        raise NotFoundError(f"{config.label}: {problem}{local_error}") from error
    splits = _standard_splits(config.label, loaded)

    def rows_of(split: Any) -> Iterator[Rows]:
        return (readers.arrow_rows(table, columns) for table in split.with_format("arrow").iter(readers.CHUNK))

    key = [columns.src, columns.tgt, {split: rows._fingerprint for split, rows in splits.items()}]
    return Corpus(config, key, lambda: {split: rows_of(rows) for split, rows in splits.items()})


def unreachable(path: str) -> str | None:
    """Return why the hub cannot be reached, or None.

    Tested first, because `datasets` tries again for a long time.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    try:
        urllib.request.urlopen(f"{endpoint}/api/datasets/{path}", timeout=5).close()
    except urllib.error.HTTPError:
        # The hub answers; `datasets` reports what is wrong with the dataset.
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"the hub {endpoint} cannot be reached: {getattr(reason, 'strerror', None) or reason}"
    return None

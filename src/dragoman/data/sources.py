"""From an entry of `data.corpora` to rows of raw text: where the corpus lies, and which reader it needs.

Knows: in which order a path is sought, what to do when it is not found, and a digest of each corpus's content
by which prepared copies are recognised.
Refuses to know: cleaning, splits that are missing, tokens.
"""

import hashlib
import os
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dragoman.data import folders, hub
from dragoman.data.corpus import SPLITS, CorpusConfig
from dragoman.data.digests import digest_of
from dragoman.data.readers import (
    CHUNK,
    PACKINGS,
    Columns,
    Rows,
    check_aligned,
    count_lines,
    format_of,
    read_aligned,
    read_jsonl,
    read_tsv,
    regular,
)
from dragoman.data.tables import columns_of, count_rows, read_parquet
from dragoman.errors import UserError, suggest

if TYPE_CHECKING:
    import datasets

COPY = "copy"  # the made-up corpus: 20,000 rows of letters, the target a copy of the source
COPY_ROWS = 20_000
ON_HUB = "hub-"  # begins the digests of what came from there
ROOT_VARIABLE = "DRAGOMAN_DATA"
DigestOf = Callable[[Path], str]  # sha256 of a file, however it comes by it


class Split(NamedTuple):
    """One split of a corpus, to be read once."""

    n_rows: int
    chunks: Iterator[Rows]


@dataclass(kw_only=True)
class Source:
    """A corpus that has been found."""

    config: CorpusConfig
    digest: str  # sha256 of its content
    n_bytes: int  # of text, about, once unpacked
    open: Callable[[], dict[str, Split]]


class NotFoundError(UserError):
    """There is no such corpus, or no way to it: what `optional: true` forgives."""


def find(
    config: CorpusConfig,
    src: str,
    tgt: str,
    root: str | None,
    refind: str | None = None,
    digest_of: DigestOf = digest_of,
) -> Source:
    """Find one corpus of languages `src`, `tgt`. `refind` is the digest of the copy that must be found again.

    Nothing is read of it but what `digest_of` reads; the rest waits until the source is opened.
    Raises `NotFoundError` naming the places where it was sought.
    """
    columns = Columns(src=config.src_column or src, tgt=config.tgt_column or tgt, where=config.label)
    if config.src_path and config.tgt_path:
        return _aligned(config, _locate(config.src_path, root), _locate(config.tgt_path, root), digest_of)
    path = config.path or ""
    if path == COPY:
        return Source(config=config, digest=f"copy-{COPY_ROWS}", n_bytes=COPY_ROWS * 40, open=_copy_task)
    try:
        local = _locate(path, root)
    except NotFoundError as nowhere:
        if not hub.is_hub_name(path):
            raise
        return _on_hub(config, columns, nowhere, refind, digest_of)
    found = _folder if local.is_dir() else _file
    return found(config, columns, local, digest_of)


def _locate(path: str, root: str | None) -> Path:
    """The place of `path`: absolute, or under the working directory, or under the folder of local corpora."""
    places = [Path(path).expanduser()]
    root = root or os.environ.get(ROOT_VARIABLE)
    if root and not places[0].is_absolute():
        places.append(Path(root).expanduser() / path)
    for place in places:
        try:
            if place.exists():
                return place if place.is_dir() else regular(place)
        except OSError as error:  # of a folder above it
            raise UserError(f"cannot read {place}: {error.strerror}") from error
    near = suggest(path, [corpus.name for corpus in Path(root).expanduser().glob("*")] if root else [])
    sought = " nor ".join(str(place.absolute()) for place in places)
    hint = "" if root else f"; data.root or the variable {ROOT_VARIABLE} can name a folder of corpora"
    raise NotFoundError(f"no corpus '{path}'{near}: there is no {sought}{hint}")


def _aligned(config: CorpusConfig, src: Path, tgt: Path, digest_of: DigestOf) -> Source:
    def read() -> dict[str, Split]:
        n_rows, _ = check_aligned(src, tgt)
        return {config.split: Split(n_rows, read_aligned(src, tgt))}

    return Source(
        config=config,
        digest=_digest(digest_of(src), digest_of(tgt), config.split),
        n_bytes=_unpacked(src) + _unpacked(tgt),
        open=read,
    )


def _file(config: CorpusConfig, columns: Columns, path: Path, digest_of: DigestOf) -> Source:
    format_of(path)
    digest = _digest(digest_of(path), config.split, columns.src, columns.tgt)
    read = lambda: {config.split: _read(config, columns, path)}  # noqa: E731
    return Source(config=config, digest=digest, n_bytes=_unpacked(path), open=read)


def _folder(config: CorpusConfig, columns: Columns, folder: Path, digest_of: DigestOf) -> Source:
    """A folder laid out like a hub dataset. All that can be seen in it is in the digest, and only that is read."""
    files = folders.files(folder)

    def open_splits() -> dict[str, Split]:
        chosen = folders.splits(folder, files, config.name)
        return {
            split: _joined([_read(config, columns, file) for file in its]) for split, its in chosen.items()
        }

    names = [part for file in files for part in (str(file.relative_to(folder)), digest_of(file))]
    return Source(
        config=config,
        digest=_digest(*names, config.name or "", columns.src, columns.tgt),
        n_bytes=sum(map(_unpacked, files)),
        open=open_splits,
    )


def _read(config: CorpusConfig, columns: Columns, path: Path) -> Split:
    """One file, whatever is in it."""
    kind, columns = format_of(path), replace(columns, where=str(path))
    if kind == ".parquet":
        return Split(count_rows(path), read_parquet(path, columns))
    named = bool(config.src_column or config.tgt_column)
    chunks = read_tsv(path, columns, named) if kind == ".tsv" else read_jsonl(path, columns)
    return Split(count_lines(path)[0], chunks)


def _joined(parts: list[Split]) -> Split:
    """Several files as one split, its rows numbered through."""
    if len(parts) == 1:
        return parts[0]
    rows = (chunk._replace(lines=None) for part in parts for chunk in part.chunks)
    return Split(sum(part.n_rows for part in parts), rows)


def _on_hub(
    config: CorpusConfig, columns: Columns, nowhere: UserError, refind: str | None, digest_of: DigestOf
) -> Source:
    path = config.path or ""
    why = hub.unreachable(path)
    try:
        loaded = hub.load(path, config.name, offline=why is not None)
    except UserError as error:
        if why is None:
            raise NotFoundError(f"{error} ({nowhere})") from error
        message = f"the Hugging Face hub ({hub.endpoint()}) cannot be reached for {config.label}: {why}"
        raise NotFoundError(message if config.optional else f"{message} ({nowhere})") from error
    digest = ON_HUB + _digest(hub.digest(loaded, digest_of), columns.src, columns.tgt)
    if refind and refind != digest:
        raise UserError(
            f"{config.label} on the hub is no longer what this run was begun with; start a new run to use it"
        )
    n_bytes = sum(rows.data.nbytes for rows in loaded.values())
    return Source(config=config, digest=digest, n_bytes=n_bytes, open=lambda: _splits(loaded, columns))


def _splits(loaded: "dict[str, datasets.Dataset]", columns: Columns) -> dict[str, Split]:
    splits = {
        split: Split(len(rows), _rows(rows, columns)) for split, rows in loaded.items() if split in SPLITS
    }
    if not splits:
        raise UserError(
            f"{columns.where} has the splits {', '.join(loaded)}; at least one of {', '.join(SPLITS)} is needed"
        )
    return splits


def _rows(rows: "datasets.Dataset", columns: Columns) -> Iterator[Rows]:
    take = columns_of(rows.features.arrow_schema, columns)
    return map(take, rows.with_format("arrow").iter(CHUNK))


def _copy_task() -> dict[str, Split]:
    """Rows of 3 to 15 random letters with spaces between; the same ones every time."""

    def rows() -> Iterator[Rows]:
        chance = random.Random(COPY)
        for _ in range(COPY_ROWS // CHUNK):
            texts = [
                " ".join(chance.choices(string.ascii_lowercase, k=chance.randint(3, 15)))
                for _ in range(CHUNK)
            ]
            yield Rows(texts, list(texts))

    return {"train": Split(COPY_ROWS, rows())}


def _unpacked(file: Path) -> int:
    """Bytes of text in a file, about: packed text takes a third of its size."""
    return file.stat().st_size * (3 if file.suffix in (*PACKINGS, ".parquet") else 1)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()

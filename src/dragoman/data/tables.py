"""Tables of Arrow to rows of text: parquet files, and what `datasets` brings from the hub.

Knows: where the two sides are in a table, flat columns or the fields of one called `translation`, and that a column of
anything but text is refused. Refuses to know: which rows are worth keeping.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dragoman.data.readers import CHUNK, PACKINGS, Columns, Rows, blocks, open_bytes
from dragoman.errors import UserError

_MOST_UNPACKED = 2**30  # bytes of a parquet file packed once more


def read_parquet(path: Path, columns: Columns) -> Iterator[Rows]:
    """A parquet file, a piece of its row groups at a time."""
    try:
        file = _parquet(path)
        take = columns_of(file.schema_arrow, columns)
        for batch in file.iter_batches(CHUNK):
            yield take(pa.Table.from_batches([batch]))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"cannot read {path} as parquet: {error}") from error


def count_rows(path: Path) -> int:
    """The rows of a parquet file, from its footer."""
    try:
        return _parquet(path).metadata.num_rows
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"cannot read {path} as parquet: {error}") from error


def _parquet(path: Path) -> pq.ParquetFile:
    """Parquet compresses inside; a file packed once more is unpacked in memory, for it is read from its end."""
    if path.suffix not in PACKINGS:
        return pq.ParquetFile(path)
    for _ in blocks(path):  # refuses a bomb before it fills the memory
        pass
    content = open_bytes(path).read(_MOST_UNPACKED + 1)
    if len(content) > _MOST_UNPACKED:
        raise UserError(f"{path} is larger than {_MOST_UNPACKED:,} bytes when unpacked: unpack it yourself")
    return pq.ParquetFile(pa.BufferReader(content))


def columns_of(schema: pa.Schema, columns: Columns) -> Callable[[pa.Table], Rows]:
    """How to take the two sides out of a table: flat columns, or the fields of a `translation` column."""
    translation = schema.field("translation").type if "translation" in schema.names else pa.null()
    fields = [field.name for field in translation] if pa.types.is_struct(translation) else []

    def column(table: pa.Table, name: str) -> list[str]:
        found = pc.struct_field(table["translation"], name) if name in fields else table[name]
        return [text or "" for text in found.cast(pa.string()).to_pylist()]

    for wanted in (columns.src, columns.tgt):
        if wanted not in fields and wanted not in schema.names:
            raise columns.missing(wanted, fields or schema.names)
        kind = translation.field(wanted).type if wanted in fields else schema.field(wanted).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
            raise UserError(f"{columns.where}: column '{wanted}' holds {kind}, not text")
    references_type = schema.field("references").type if "references" in schema.names else pa.null()
    has_references = pa.types.is_list(references_type) and pa.types.is_string(references_type.value_type)

    def take(table: pa.Table) -> Rows:
        try:
            references = [row or [] for row in table["references"].to_pylist()] if has_references else None
            return Rows(column(table, columns.src), column(table, columns.tgt), references)
        except UnicodeDecodeError as error:  # tables promise UTF-8: one that breaks it is damaged
            raise UserError(f"{columns.where} is damaged: a text in it is not UTF-8") from error

    return take

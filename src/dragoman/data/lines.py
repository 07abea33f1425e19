"""Lines of text files, plain or gzip, and the check of two aligned files.

Lines end at the byte "\\n" alone. U+2028 and a lone carriage return are text; splitting there would misalign two
files. Bytes that are not UTF-8 become lone surrogates, which cleaning repairs.
"""

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from dragoman.errors import UserError

_DAMAGED = re.compile("[\ud800-\udfff]")
# Minimum number of damaged lines to judge the encoding of a file.
_FEW = 10


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file without their "\\n"."""
    damaged = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise UserError(f"{path}: not UTF-8 (found UTF-16). Convert it: iconv -f UTF-16 -t UTF-8")
                text = line.removesuffix(b"\n").decode(errors="surrogateescape")
                damaged += _DAMAGED.search(text) is not None
                if _FEW <= damaged > number / 2:
                    raise UserError(f"{path}: most lines are not UTF-8. Convert it: iconv -f GB18030 -t UTF-8")
                yield text
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error


def check_aligned(src: Path, tgt: Path) -> None:
    """Raise UserError unless two files have equally many lines."""
    n_src, n_tgt = (sum(1 for _ in lines(path)) for path in (src, tgt))
    if n_src != n_tgt:
        raise UserError(
            f"{tgt}: not aligned with {src} (found {n_tgt} and {n_src} lines). Find the place: "
            f"python scripts/doctor.py --src-path {src} --tgt-path {tgt}"
        )

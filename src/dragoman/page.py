"""Weights and labels in, one web page out: every attention map of a sentence pair, to be walked through.

The page (page.html) is complete in itself: no network, no library, no file beside it; it opens from a disk and
works in ten years. This module fills its four blanks. It knows how weights become numbers in a page and that no
text may become markup; it refuses to know models, tokenizers and files.

What people wrote never meets the markup: the sentences stand in it escaped, everything else is JSON in which
no `<` is left, and the script puts it into the page as text.
"""

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.errors import UserError

TEMPLATE = Path(__file__).with_name("page.html")
MOST_WEIGHTS = 4_000_000  # about as many characters thrice; 36 maps of 330 pieces, or 144 of 160

# kind -> its name, whose pieces the rows and columns are, and how to read them
KINDS = {
    "cross": (
        "cross-attention", "tgt_out", "src",
        "A row is a piece being written, a column a source piece that it looks at.",
    ),
    "encoder": (
        "encoder self-attention", "src", "src",
        "A row is a source piece, a column a source piece that it looks at.",
    ),
    "decoder": (
        "decoder self-attention", "tgt_out", "tgt_in",
        "A row is a piece being written, a column one of those written before it; nobody looks ahead.",
    ),
}  # fmt: skip


def attention_page(
    maps: Mapping[str, Any],
    pieces: Mapping[str, Sequence[str]],
    *,
    source: str,
    translation: str,
    languages: tuple[str, str] = ("zh", "en"),
) -> bytes:
    """A page of HTML in UTF-8.

    maps: "encoder" (L, H, S, S), "decoder" (L, H, T, T), "cross" (L, H, T, S), arrays or CPU tensors, as
    attention_map gives them; shown to a thousandth. pieces: "src" (S), "tgt_in" and "tgt_out" (T), the labels.
    `languages` of source and translation choose the shapes of their hanzi. Raises ValueError when sizes
    differ, UserError when there is more than a browser can be asked to hold.
    """
    weights = {kind: np.asarray(maps[kind], dtype=np.float32) for kind in KINDS}
    total = sum(each.size for each in weights.values())
    if total > MOST_WEIGHTS:
        raise UserError(
            f"a page of {total:,} attention weights would be too much for a browser (at most {MOST_WEIGHTS:,}): "
            "give a shorter sentence, or a .png, which shows one layer"
        )
    language_of = {"src": languages[0], "tgt_in": languages[1], "tgt_out": languages[1]}
    data = []
    for kind, (name, rows, columns, legend) in KINDS.items():
        shape = weights[kind].shape
        if len(shape) != 4 or 0 in shape or shape[2:] != (len(pieces[rows]), len(pieces[columns])):
            raise ValueError(
                f"{kind} weights {shape} do not fit {len(pieces[rows])} rows, {len(pieces[columns])} columns"
            )
        data.append(
            {
                "name": name,
                "legend": legend,
                "rows": list(pieces[rows]),
                "columns": list(pieces[columns]),
                "rows_language": language_of[rows],
                "columns_language": language_of[columns],
                "weights": np.rint(weights[kind] * 1000).astype(int).reshape(*shape[:2], -1).tolist(),
            }
        )
    blanks = {
        "source": html.escape(source),
        "translation": html.escape(translation),
        "source_language": html.escape(languages[0]),
        "translation_language": html.escape(languages[1]),
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }
    page = TEMPLATE.read_text(encoding="utf-8")
    # In one pass: a sentence may hold the name of another blank.
    filled = re.sub(f"@({'|'.join(blanks)})@", lambda blank: blanks[blank[1]], page)
    return filled.encode("utf-8", "replace")

"""Web pages and texts from jinja templates.

Each page is self-contained: no network, no library, no other file. Jinja escapes sentences; all other data is JSON
without `<`, which a script of the page converts to text nodes.
"""

import base64
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment


def render(template: str | Path, *, autoescape: bool = True, block: str | None = None, **values: object) -> bytes:
    """Return a template of the package, or one block of it, filled in, as UTF-8."""
    environment = Environment(autoescape=autoescape, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters |= {"numbers": numbers, "data_url": data_url, "visible": visible}
    page = environment.from_string((Path(__file__).parents[1] / template).read_text(encoding="utf-8"))
    text = "".join(page.blocks[block](page.new_context(values))) if block else page.render(values)
    return text.encode("utf-8", "replace")


def numbers(values: Any) -> str:
    """Format a vector or matrix as aligned rows, in at most the digits of float32."""
    rows = np.atleast_2d(np.asarray(values, dtype=np.float64))
    form = "8.0f" if (rows == rows.round()).all() else "10.4f" if abs(rows).max() < 1000 else "10.2f"
    return "\n".join("  " + " ".join(format(x, form) for x in row) for row in rows)


def data_url(png: bytes) -> str:
    """Encode a picture as the `src` of an HTML image."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def visible(text: str) -> str:
    """Replace characters that cannot be printed by their code points."""
    return "".join(each if each.isprintable() else f"⟨U+{ord(each):04X}⟩" for each in text)

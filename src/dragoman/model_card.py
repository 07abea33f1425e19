"""The page that a trained model carries with it for people: what it is, how good, how to use it, whose it is.

It knows the provenance that training writes down, and invents nothing: what was not recorded is not said.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.languages import Direction

_OWN_PLACE = ("name", "data", "scores", "validation", "command", "hardware", "licence")

_LICENCE = (
    "The weights were learned from the corpora above: whoever passes them on keeps to the licences of those "
    "corpora (attribution, research only, no derivatives, whichever applies)."
)


def model_card(directions: Sequence[Direction], meta: Mapping[str, Any], *, n_parameters: int) -> str:
    """Markdown. `meta` is the provenance of a bundle: JSON, any part of which may be missing."""
    name = meta.get("name", f"{directions[0].src}-{directions[0].tgt}")
    lines = [
        f"# {name}: a translation model, {' and '.join(f'{src} to {tgt}' for src, tgt in directions)}",
        "",
        f"A Transformer with {n_parameters:,} parameters, trained with Dragoman.",
        "",
        "## Use",
        "",
        "```",
        'python translate.py --model FOLDER "text"',
        "```",
        "",
        "FOLDER is this folder. It holds plain data only: safetensors, sentencepiece files and JSON.",
    ]
    if len(directions) > 1:
        lines += [
            "",
            "The direction is chosen by the script of the text, or named: "
            f"{' or '.join(f'`--direction {direction}`' for direction in directions)}.",
        ]
    if meta.get("data"):
        lines += ["", "## Data", "", *_items(meta["data"])]
    scores = {key: meta[key] for key in ("scores", "validation") if meta.get(key)}
    if scores:
        lines += ["", "## Scores", "", *_items(scores)]
    made = {key: meta[key] for key in ("command", "hardware") if meta.get(key)}
    made |= {key: value for key, value in meta.items() if key not in _OWN_PLACE}
    if made:
        lines += ["", "## How it was made", "", *_items(made)]
    lines += ["", "## Licence", "", str(meta.get("licence") or _LICENCE)]
    return "\n".join(lines) + "\n"


def _items(value: Any, indent: str = "") -> list[str]:
    """Nested JSON as nested Markdown lists."""
    if isinstance(value, Mapping):
        lines = []
        for key, inner in value.items():
            if isinstance(inner, Mapping | list) and inner:
                lines += [f"{indent}- {key}:", *_items(inner, indent + "  ")]
            else:
                lines.append(f"{indent}- {key}: {_plain(inner)}")
        return lines
    if isinstance(value, list):
        return [line for inner in value for line in _items(inner, indent)]
    return [f"{indent}- {_plain(value)}"]


def _plain(value: Any) -> str:
    return " ".join(str(value).split())

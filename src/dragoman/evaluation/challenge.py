"""Challenge set: test items by phenomenon, each with a check that needs no judge.

A line has four columns: phenomenon, source, check, a correct translation. The conditions of a check are joined by
" & ". A condition lists alternatives, joined by "|", one of which must stand in the translation as whole words, in any
case; "!" before the list means that none may. "*" ends the beginning of a word.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dragoman.data.lines import lines
from dragoman.data.text import clean_text
from dragoman.errors import UserError


class Item(NamedTuple):
    """One sentence and what its translation must and must not have."""

    phenomenon: str
    source: str
    check: str
    reference: str

    def passes(self, translation: str) -> bool:
        """Whether a translation satisfies every condition."""
        text = translation.lower().replace("’", "'")
        return all(
            any(_stands(word, text) for word in condition.removeprefix("!").split("|")) != condition.startswith("!")
            for condition in self.check.split(" & ")
        )


def _stands(word: str, text: str) -> bool:
    """Whether an alternative stands in a text in lower case."""
    word = word.strip().lower()
    end = "" if word.endswith("*") else r"(?![\w'])"
    return re.search(rf"(?<![\w']){re.escape(word.removesuffix('*'))}{end}", text) is not None


def read_items(path: Path) -> list[Item]:
    """Read a file of items; # begins a comment. Raises UserError for a bad line."""
    items = []
    for number, line in enumerate(lines(path), 1):
        if not line.strip() or line.startswith("#"):
            continue
        cells = [clean_text(cell) for cell in line.split("\t")]
        if len(cells) != 4 or not all(cells):
            raise UserError(f"{path} line {number}: not four columns: phenomenon, source, check, translation")
        item = Item(*cells)
        if not all(word.strip(" *!") for condition in item.check.split(" & ") for word in condition.split("|")):
            raise UserError(f"{path} line {number}: the check has an empty alternative (found {item.check!r})")
        if not item.passes(item.reference):
            raise UserError(f"{path} line {number}: the given translation does not pass its check")
        items.append(item)
    if not items:
        raise UserError(f"{path}: no item")
    return items


def results(items: Sequence[Item], translations: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Phenomenon -> items passed, and all items; "all" comes last."""
    passed, every = Counter[str](), Counter[str]()
    for item, translation in zip(items, translations, strict=True):
        every.update((item.phenomenon, "all"))
        passed.update((item.phenomenon, "all") if item.passes(translation) else ())
    return {name: (passed[name], every[name]) for name in [*sorted(every.keys() - {"all"}), "all"]}

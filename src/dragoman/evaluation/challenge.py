"""Challenge set: test sentences by phenomenon, with checks that need no judge.

A line of the file has four columns: phenomenon, source, check, correct translation. A check is a list of conditions,
joined by " & "; all must hold. A condition is a list of alternatives, joined by "|". It holds if the translation has
one of them, as whole words and in any case. With "!" before the list it holds if the translation has none of them.
"swim*" stands for all words that begin with "swim".
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dragoman.data.text import clean_text, lines
from dragoman.errors import UserError


class ChallengeSentence(NamedTuple):
    """One sentence and what its translation must and must not have."""

    phenomenon: str
    source: str
    check: str
    reference: str

    def passes(self, translation: str) -> bool:
        """Whether a translation satisfies every condition."""
        text = translation.replace("’", "'")
        return all(_holds(condition, text) for condition in self.check.split(" & "))


def _holds(condition: str, text: str) -> bool:
    words = [re.escape(word.strip()).replace(r"\*", r"[\w']*") for word in condition.removeprefix("!").split("|")]
    has_one = re.search(rf"(?<![\w'])({'|'.join(words)})(?![\w'])", text, re.IGNORECASE) is not None
    return has_one != condition.startswith("!")


def read_sentences(path: Path) -> list[ChallengeSentence]:
    """Read a file of sentences; # begins a comment. Raises UserError for a bad line."""
    sentences = []
    for number, line in enumerate(lines(path), 1):
        if not line.strip() or line.startswith("#"):
            continue
        cells = [clean_text(cell) for cell in line.split("\t")]
        if len(cells) != 4 or not all(cells):
            raise UserError(f"{path} line {number}: not four columns: phenomenon, source, check, translation")
        sentence = ChallengeSentence(*cells)
        if not sentence.passes(sentence.reference):
            raise UserError(f"{path} line {number}: the given translation does not pass its check")
        sentences.append(sentence)
    if not sentences:
        raise UserError(f"{path}: no sentence")
    return sentences


def results(sentences: Sequence[ChallengeSentence], translations: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Phenomenon -> sentences passed, and all sentences; "all" comes last."""
    passed, every = Counter[str](), Counter[str]()
    for sentence, translation in zip(sentences, translations, strict=True):
        every.update((sentence.phenomenon, "all"))
        passed.update((sentence.phenomenon, "all") if sentence.passes(translation) else ())
    return {name: (passed[name], every[name]) for name in [*sorted(every.keys() - {"all"}), "all"]}

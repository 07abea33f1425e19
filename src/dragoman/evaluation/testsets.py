"""Test sets: splits of a training run or a corpus, plain files, challenge sets.

Pairs have all their references, the target first. Every text is cleaned, so that it is one line of a file.

A challenge set has sentences by phenomenon, with checks that need no judge; its format is in data/README.md.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import NamedTuple

from dragoman.config import CorpusConfig, DataConfig
from dragoman.data.cleaning import Cleaner
from dragoman.data.prepare import read_pairs
from dragoman.data.readers import Rows, find
from dragoman.data.text import SPLITS, Pair, check_aligned, clean_text, lines
from dragoman.errors import UserError, check_choice
from dragoman.languages import Direction


def of_run(run: Path, split: str, direction: Direction, first: Direction) -> list[Pair]:
    """The pairs that a training run held out; `first` is its model's first direction."""
    check_choice("--split", split, SPLITS[1:])
    path = run / f"{split}.pairs.json"
    if not path.is_file():
        hint = "Name a test set: --corpus, or --src and --ref"
        raise UserError(f"{run}: not a run, or an older one (no {path.name}). {hint}")
    pairs = read_pairs(path)
    return _checked(pairs if direction == first else [pair.swapped() for pair in pairs], f"the {split} split of {run}")


def of_corpus(config: CorpusConfig, split: str, direction: Direction, first: Direction, root: str | None) -> list[Pair]:
    """A split of a corpus (file, folder or hub dataset), cleaned as in training.

    `first` is the model's first direction, which names the columns of a TSV without a header, as in training.
    """
    splits = find(replace(config, split=split), first.src, first.tgt, root).open()
    if split not in splits:
        raise UserError(f"{config.label}: no split '{split}' (found {', '.join(splits)})")
    cleaner, pairs = Cleaner(DataConfig(src=direction.src, tgt=direction.tgt)), list[Pair]()
    for rows in splits[split]:
        sides = (rows.src, rows.tgt) if direction == first else (rows.tgt, rows.src)
        pairs += cleaner.clean(Rows(*sides, rows.references), "test")
    return _checked(pairs, config.label)


def of_files(src: Path, references: Sequence[Path]) -> list[Pair]:
    """Aligned plain files: sources and references.

    Blank lines of further files are no references.
    """
    for reference in references:
        check_aligned(src, reference)
    columns = zip(*(map(clean_text, lines(path)) for path in (src, *references)), strict=True)
    return _checked([Pair(text, first, tuple(filter(None, others))) for text, first, *others in columns], str(src))


def _checked(pairs: Sequence[Pair], where: str) -> list[Pair]:
    """Return pairs whose first reference is the target. Raises UserError without any."""
    if not pairs:
        raise UserError(f"{where}: no pair to evaluate. Name another test set")
    return [pair._replace(references=tuple(dict.fromkeys((pair.tgt, *pair.references)))) for pair in pairs]


class ChallengeSentence(NamedTuple):
    """One sentence and what its translation must and must not have."""

    phenomenon: str
    source: str
    check: str
    reference: str

    def passes(self, translation: str) -> bool:
        """Whether a translation satisfies every condition."""
        for condition in self.check.replace("’", "'").split(" & "):
            words = "|".join(re.escape(word.strip()) for word in condition.removeprefix("!").split("|"))
            pattern = rf"(?<![\w'])({words})(?![\w'])".replace(r"\*", r"[\w']*")
            has_one = re.search(pattern, translation.replace("’", "'"), re.IGNORECASE) is not None
            if has_one == condition.startswith("!"):
                return False
        return True


def read_challenge(path: Path) -> list[ChallengeSentence]:
    """Read a challenge set; # begins a comment. Raises UserError for a bad line."""
    sentences = []
    for number, line in enumerate(lines(path), 1):
        if line.strip() and not line.startswith("#"):
            cells = [clean_text(cell) for cell in line.split("\t")]
            if len(cells) != 4 or not all(cells) or not all(w.strip(" !*") for w in re.split(r"\|| & ", cells[2])):
                columns = "phenomenon, source, check, translation"
                raise UserError(f"{path} line {number}: not four columns ({columns}), or an empty word in the check")
            sentences.append(ChallengeSentence(*cells))
    if not sentences:
        raise UserError(f"{path}: no sentence. data/README.md describes a line")
    return sentences


def count_passed(sentences: Sequence[ChallengeSentence], translations: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Phenomenon -> sentences passed, and all sentences; "all" comes last."""
    right = [sentence.passes(text) for sentence, text in zip(sentences, translations, strict=True)]
    names = [sentence.phenomenon for sentence in sentences]
    total, passed = Counter(names), Counter(compress(names, right))
    return {name: (passed[name], n) for name, n in sorted(total.items())} | {"all": (sum(right), len(right))}

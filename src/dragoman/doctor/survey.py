"""One reading of a corpus: of every pair a few numbers, and no text.

Knows: the order of reading (validation and test first, so that training pairs can be held against them), and that
a corpus may be larger than memory: a pair costs some 50 bytes here, and its sentences are forgotten with their
chunk. Pairs go through the same Cleaner as before training, so that what is said of duplicates and leaks, and how
many pairs will be dropped, is what will happen.
Refuses to know: what is a finding.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from dragoman.data.cleaning import Cleaner, Report
from dragoman.data.corpus import SPLITS
from dragoman.data.readers import Rows
from dragoman.data.sources import Source, Split
from dragoman.data.splits import Hashes, hashes
from dragoman.doctor.characters import KIND, POINTS, Sentences
from dragoman.doctor.faults import faults
from dragoman.doctor.leaks import MOST, HeldOut
from dragoman.languages import is_unspaced

SAMPLE = 20_000  # training pairs kept as text, for a quick tokenizer
MARKS = ("question", "exclamation", "quote", "bracket")


class Part(NamedTuple):
    """A split of one corpus: rows first .. last - 1 of the table."""

    corpus: str
    split: str
    first: int
    last: int
    unit: str  # what its numbers count: "line" of a file, or "row" of a table


class Table(NamedTuple):
    """What is known of n pairs, in the order in which they were read."""

    line: np.ndarray  # (n,) int64, from 1, in its own part
    src_length: np.ndarray  # (n,) int32, characters
    tgt_length: np.ndarray
    src_digits: np.ndarray  # (n,) uint16, as Sentences.digits
    tgt_digits: np.ndarray
    src_marks: np.ndarray  # (n,) uint8, a bit for each of MARKS
    tgt_marks: np.ndarray
    faults: np.ndarray  # (n,) uint32
    src_hash: np.ndarray  # (n,) uint64, of the clean sentences; 0 where the pair is not kept
    tgt_hash: np.ndarray
    kept: np.ndarray  # (n,) bool, by cleaning

    def at(self, rows: np.ndarray | slice) -> "Table":
        """Some rows."""
        return Table(*(column[rows] for column in self))


@dataclass(kw_only=True)
class Survey:
    """A corpus that has been read."""

    parts: list[Part]
    table: Table
    report: Report  # of cleaning
    held: Hashes  # of validation and test, all references included
    near: dict[int, tuple[str, str]]  # training row -> the pair of validation or test that it nearly is
    unsought: np.ndarray  # (n,) rows of validation and test to which nearly the same pairs were not sought
    characters: np.ndarray  # (2, POINTS) int64, how often each occurs in the clean training pairs
    sample: list[tuple[str, str]] = field(default_factory=list)  # clean training pairs

    def part_of(self, row: int) -> Part:
        """The part that a row of the table belongs to."""
        return next(part for part in self.parts if part.first <= row < part.last)


class Surveyor:
    """Reads sources once and adds up."""

    def __init__(self, cleaner: Cleaner) -> None:
        self._cleaner = cleaner
        self._languages = (cleaner.src, cleaner.tgt)
        self._tables: list[Table] = []
        self._n_rows = 0
        self._parts: list[Part] = []
        self._held: list[Hashes] = []
        self._held_texts: tuple[list[str], list[str]] = ([], [])
        self._index: tuple[HeldOut, HeldOut] | None = None
        self._near: dict[int, tuple[str, str]] = {}
        self._unsought: set[int] = set()
        self._characters = np.zeros((2, POINTS), np.int64)
        self._sample: list[tuple[int, str, str]] = []
        self._worst = 2**64  # hashes below it are in the sample

    def read(self, sources: list[Source]) -> Survey:
        """Every split of every source, training splits last."""
        opened = [(source.config.label, source.open()) for source in sources]
        total = sum(split.n_rows for _, splits in opened for split in splits.values())
        with tqdm(total=total, unit=" pairs", unit_scale=True, desc="reading", disable=None) as bar:
            for name in reversed(SPLITS):
                if name == "train":
                    n_grams = (2 if is_unspaced(language) else 4 for language in self._languages)
                    first, second = map(HeldOut, self._held_texts, n_grams)
                    self._index = (first, second)
                for label, splits in opened:
                    if name in splits:
                        self._read_part(label, name, splits[name], bar)
        return Survey(
            parts=self._parts,
            table=Table(*map(np.concatenate, zip(*self._tables, strict=True))) if self._tables else nothing(),
            report=self._cleaner.report,
            held=Hashes.joined(self._held),
            near=self._near,
            unsought=np.array(sorted(self._unsought), np.int64),
            characters=self._characters,
            sample=[(src, tgt) for _, src, tgt in sorted(self._sample)[:SAMPLE]],
        )

    def _read_part(self, label: str, name: str, split: Split, bar: tqdm) -> None:
        first, unit, line = self._n_rows, "row", 1
        for rows in split.chunks:
            unit = "line" if rows.lines is not None else unit
            lines = np.arange(line, line + len(rows.src)) if rows.lines is None else np.array(rows.lines)
            self._add(rows, lines, name)
            line += len(rows.src)
            bar.update(len(rows.src))
        self._parts.append(Part(label, name, first, self._n_rows, unit))

    def _add(self, rows: Rows, lines: np.ndarray, split: str) -> None:
        n = len(rows.src)
        sides = Sentences.of(rows.src), Sentences.of(rows.tgt)
        counts = sides[0].counts(), sides[1].counts()
        clean = self._cleaner.clean(rows._replace(lines=range(n)), split)
        kept = np.array(clean.lines, np.int64)
        src, tgt = np.zeros(n, np.uint64), np.zeros(n, np.uint64)
        own = Hashes(hashes([t.encode() for t in clean.src]), hashes([t.encode() for t in clean.tgt]))
        src[kept], tgt[kept] = own
        self._tables.append(
            Table(
                line=lines,
                src_length=sides[0].lengths.astype(np.int32),
                tgt_length=sides[1].lengths.astype(np.int32),
                src_digits=sides[0].digits().astype(np.uint16),
                tgt_digits=sides[1].digits().astype(np.uint16),
                src_marks=marks(counts[0]),
                tgt_marks=marks(counts[1]),
                faults=faults(rows, sides, counts, self._languages),
                src_hash=src,
                tgt_hash=tgt,
                kept=np.isin(np.arange(n), kept),
            )
        )
        if split == "train":
            self._against_held_out(sides)
            self._count(clean, own.pairs())
        else:
            self._hold_out(clean, own)
        self._n_rows += n

    def _hold_out(self, clean: Rows, own: Hashes) -> None:
        self._held.append(own)
        n, lines = len(clean.src), clean.lines or []
        further = [(i, text) for i, texts in enumerate(clean.references or []) for text in texts[1:]]
        sides = (
            [*clean.src, *(clean.src[i] for i, _ in further)],
            [*clean.tgt, *(text for _, text in further)],
        )
        self._held.append(Hashes(*(hashes([text.encode() for text in texts[n:]]) for texts in sides)))
        room = MOST - len(self._held_texts[0])
        for held, texts in zip(self._held_texts, sides, strict=True):
            held.extend(texts[:room])
        unsought = [*lines, *(lines[i] for i, _ in further)][room:]
        self._unsought.update(self._n_rows + line for line in unsought)

    def _against_held_out(self, sides: tuple[Sentences, Sentences]) -> None:
        assert self._index
        src, tgt = (index.near(side) for index, side in zip(self._index, sides, strict=True))
        for row, held in sorted(set(map(tuple, src.tolist())) & set(map(tuple, tgt.tolist()))):
            self._near[self._n_rows + row] = (self._held_texts[0][held], self._held_texts[1][held])

    def _count(self, clean: Rows, pair_hashes: np.ndarray) -> None:
        for counts, texts in zip(self._characters, (clean.src, clean.tgt), strict=True):
            points, n = np.unique(Sentences.of(texts).points, return_counts=True)
            counts[points] += n
        values = pair_hashes.tolist()
        self._sample += [
            (value, clean.src[i], clean.tgt[i]) for i, value in enumerate(values) if value < self._worst
        ]
        if len(self._sample) > 2 * SAMPLE:
            self._sample = sorted(self._sample)[:SAMPLE]
            self._worst = self._sample[-1][0]


def marks(counts: np.ndarray) -> np.ndarray:
    """(n,) uint8, which of MARKS each sentence has, from the counts of its characters."""
    bits = [(counts[:, KIND[mark]] > 0).astype(np.uint8) << number for number, mark in enumerate(MARKS)]
    return np.bitwise_or.reduce(bits)


def nothing() -> Table:
    """Of no rows."""
    return Table(*(np.empty(0, kind) for kind in (
        np.int64, np.int32, np.int32, np.uint16, np.uint16, np.uint8, np.uint8, np.uint32, np.uint64, np.uint64, bool
    )))  # fmt: skip


def texts_of(sources: list[Source], parts: list[Part], wanted: Iterable[int]) -> dict[int, tuple[str, str]]:
    """The two raw sentences of some rows of the table, by a second reading that ends with the last of them."""
    found: dict[int, tuple[str, str]] = {}
    left = sorted(wanted)
    by_part = {(part.corpus, part.split): part for part in parts}
    for source in sources:
        for name, split in source.open().items():
            part = by_part[source.config.label, name]
            rows = iter(row - part.first for row in left if part.first <= row < part.last)
            for place, pair in _picked(split.chunks, rows):
                found[part.first + place] = pair
    return found


def _picked(chunks: Iterable[Rows], wanted: Iterator[int]) -> Iterator[tuple[int, tuple[str, str]]]:
    """Rows by their places in a split, increasing; no chunk is read past the last of them."""
    place, before = next(wanted, None), 0
    if place is None:
        return
    for rows in chunks:
        while place is not None and place - before < len(rows.src):
            yield place, (rows.src[place - before], rows.tgt[place - before])
            place = next(wanted, None)
        before += len(rows.src)
        if place is None:
            return

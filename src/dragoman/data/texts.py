"""The first half of preparing a corpus: raw rows in, clean sentences of three splits on disk.

Knows: the order of things. Rows stream through cleaning to disk; when all have passed, their hashes decide who is a
duplicate, who leaks, and which rows become the splits the corpus did not bring.
Refuses to know: tokens, where corpora lie.

What it leaves in its folder: {train,validation,test}.{src,tgt}, references for the latter two, and for train
`train.rows.npy` (the rows that stayed, in the order of the corpora) and `train.corpus.npy` (which corpus each of
these is from); `report.json`; `content`, a digest of all that was kept, the same wherever it was prepared.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from dragoman.data.cleaning import DUPLICATE, LEAK, SHARED, Cleaner, Report
from dragoman.data.corpus import SPLITS
from dragoman.data.readers import Rows
from dragoman.data.sources import Source
from dragoman.data.splits import cut, first_occurrences, hashes, pair_hashes, sharing
from dragoman.data.store import RaggedWriter, Texts
from dragoman.errors import UserError


class Hashes(NamedTuple):
    """One hash per sentence of the rows of a split."""

    src: np.ndarray  # (n,) uint64
    tgt: np.ndarray


class SplitWriter:
    """Writes the clean rows of one split and keeps their hashes."""

    def __init__(self, folder: Path, split: str, files: contextlib.ExitStack) -> None:
        self._src, self._tgt, self._references = (
            files.enter_context(RaggedWriter(folder / f"{split}.{side}", "uint8"))
            for side in ("src", "tgt", "references")
        )
        self._train = split == "train"
        self._src_hashes: list[np.ndarray] = [np.empty(0, np.uint64)]
        self._tgt_hashes: list[np.ndarray] = [np.empty(0, np.uint64)]
        self.corpus: list[np.ndarray] = [np.empty(0, np.uint16)]
        self.held: list[Hashes] = []  # the hashes of (source, each further reference)

    def append(self, rows: Rows, corpus: int) -> None:
        """Clean rows of corpus number `corpus`."""
        src, tgt = [text.encode() for text in rows.src], [text.encode() for text in rows.tgt]
        self._src.append_texts(src)
        self._tgt.append_texts(tgt)
        self._src_hashes.append(hashes(src))
        self._tgt_hashes.append(hashes(tgt))
        self.corpus.append(np.full(len(src), corpus, np.uint16))
        if not self._train:
            references = rows.references or [[text] for text in rows.tgt]
            self._references.append_texts(["\n".join(texts).encode() for texts in references])
            further = [(i, text.encode()) for i, texts in enumerate(references) for text in texts[1:]]
            if further:
                rows_of = np.array([i for i, _ in further])
                self.held.append(Hashes(self._src_hashes[-1][rows_of], hashes([text for _, text in further])))

    def hashes(self) -> Hashes:
        """Of all rows so far."""
        return Hashes(np.concatenate(self._src_hashes), np.concatenate(self._tgt_hashes))

    def held_out(self) -> Hashes:
        """Of all rows and all their references: what training must not contain."""
        mine = [self.hashes(), *self.held]
        return Hashes(np.concatenate([h.src for h in mine]), np.concatenate([h.tgt for h in mine]))


def write_texts(
    sources: list[Source], folder: Path, cleaner: Cleaner, leak: str, sizes: dict[str, int], quiet: bool = False
) -> None:
    """Fill `folder` from `sources`. `sizes` says how large validation and test are cut where no corpus has them."""
    report = cleaner.report
    with contextlib.ExitStack() as files:
        writers = {split: SplitWriter(folder, split, files) for split in SPLITS}
        with tqdm(unit=" pairs", desc="reading and cleaning", disable=quiet or None) as bar:
            for number, source in enumerate(sources):
                for split, chunks in source.open().items():
                    for rows in chunks:
                        writers[split].append(cleaner.clean(rows, split), number)
                        bar.update(len(rows.src))
        train = writers["train"].hashes()
        keep = first_occurrences(pair_hashes(*train))
        report.drop("train", DUPLICATE, int((~keep).sum()))
        missing = {split: size for split, size in sizes.items() if not report.read[split]}
        for split in ("validation", "test"):
            keep = _without_leaks(train, writers[split].held_out(), keep, leak, report)
        files_of_train = folder / "train"
        ...

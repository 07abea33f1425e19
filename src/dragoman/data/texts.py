"""The first half of preparing a corpus: raw rows in, clean sentences of three splits on disk.

Knows: the order of things. Rows stream through cleaning to disk; when all have passed, their hashes decide
who is a duplicate, who leaks, and which rows become the splits the corpus did not bring.
Refuses to know: tokens, where corpora lie.

What it leaves in its folder: {train,validation,test}.{src,tgt}, references for the latter two, and for train
`train.rows.npy` (the rows that stayed, in the order of the corpora) and `train.corpus.npy` (which corpus each
of these is from); `report.json`; `content`, a digest of all that was kept, the same wherever it was prepared.
"""

import contextlib
import hashlib
import json
from pathlib import Path

import numpy as np
from tqdm import tqdm

from dragoman.data.cleaning import DUPLICATE, INVALID, LEAK, SHARED, Cleaner, Report
from dragoman.data.corpus import SPLITS
from dragoman.data.readers import Rows
from dragoman.data.sources import Source
from dragoman.data.splits import Hashes, cut, first_occurrences, hashes
from dragoman.data.store import RaggedWriter, Texts
from dragoman.errors import UserError

FEW = 10  # rows of a chunk from which the encoding of a file can be judged


class SplitWriter:
    """Writes the clean rows of one split and keeps their hashes."""

    def __init__(self, folder: Path, split: str, files: contextlib.ExitStack) -> None:
        self._src, self._tgt, self._references = (
            files.enter_context(RaggedWriter(folder / f"{split}.{side}", "uint8"))
            for side in ("src", "tgt", "references")
        )
        self._hashes: list[Hashes] = []
        self._further: list[Hashes] = []  # of (source, each reference but the first)
        self._corpus: list[np.ndarray] = []

    def append(self, rows: Rows, corpus: int) -> None:
        """Clean rows of corpus number `corpus`."""
        src, tgt = [text.encode() for text in rows.src], [text.encode() for text in rows.tgt]
        self._src.append_texts(src)
        self._tgt.append_texts(tgt)
        self._hashes.append(Hashes(hashes(src), hashes(tgt)))
        self._corpus.append(np.full(len(src), corpus, np.uint16))
        if rows.references:
            self._references.append_texts(["\n".join(texts).encode() for texts in rows.references])
            further = [(i, text.encode()) for i, texts in enumerate(rows.references) for text in texts[1:]]
            sources = np.array([i for i, _ in further], np.int64)
            self._further.append(Hashes(self._hashes[-1].src[sources], hashes([text for _, text in further])))

    def hashes(self) -> Hashes:
        """Of the rows."""
        return Hashes.joined(self._hashes)

    def held_out(self) -> Hashes:
        """Of the rows and all their references: what training must not contain."""
        return Hashes.joined(self._hashes + self._further)

    def corpus(self) -> np.ndarray:
        """(n,) uint16, the corpus each row is from."""
        return np.concatenate([np.empty(0, np.uint16), *self._corpus])


def write_texts(
    sources: list[Source], folder: Path, cleaner: Cleaner, leak: str, sizes: dict[str, int]
) -> None:
    """Fill `folder` from `sources`, cutting validation and test of `sizes` where no corpus has them.

    Raises `UserError` when nothing is left to train on.
    """
    report = cleaner.report
    with contextlib.ExitStack() as files:
        writers = {split: SplitWriter(folder, split, files) for split in SPLITS}
        opened = [source.open() for source in sources]
        total = sum(split.n_rows for splits in opened for split in splits.values())
        with tqdm(total=total, unit=" pairs", unit_scale=True, desc="cleaning", disable=None) as bar:
            for number, splits in enumerate(opened):
                for name, split in splits.items():
                    for rows in split.chunks:
                        invalid = report.mended[INVALID]
                        writers[name].append(cleaner.clean(rows, name), number)
                        _check_encoding(rows, report.mended[INVALID] - invalid, sources[number].config.label)
                        bar.update(len(rows.src))
    train = writers["train"].hashes()
    given = {split: writers[split].held_out() for split in ("validation", "test") if report.read[split]}
    missing = {split: size for split, size in sizes.items() if split not in given and size}
    kept, cuts = _assign(train, given, missing, leak, report)
    for name, chosen in cuts.items():
        _write_cut(folder, name, chosen)
    if not len(kept):
        where = ", ".join(source.config.label for source in sources)
        raise UserError(f"no training pair is left of {where} after cleaning: {report.explain()}")
    np.save(folder / "train.rows.npy", kept)
    np.save(folder / "train.corpus.npy", writers["train"].corpus()[kept])
    report.kept.update(train=len(kept))
    held = {split: train.at(rows) for split, rows in cuts.items()} | given
    report.kept.update(
        {split: len(cuts[split]) if split in cuts else len(writers[split].hashes().src) for split in held}
    )
    content = hashlib.sha256()
    for part in (train.at(kept), *(held[split] for split in sorted(held))):
        content.update(hashlib.sha256(part.src.tobytes() + part.tgt.tobytes()).digest())
    (folder / "content").write_text(content.hexdigest())
    (folder / "report.json").write_text(json.dumps(report.as_dict()))


def _check_encoding(rows: Rows, invalid: int, label: str) -> None:
    """A damaged sentence is mended; a file in another encoding is not, for nothing of it would be left but marks."""
    if 2 * invalid > len(rows.src) >= FEW:
        lines = f", lines {rows.lines[0]:,} to {rows.lines[-1]:,}" if rows.lines else ""
        raise UserError(
            f"{label}{lines}: most of them are not UTF-8. Convert the file, e.g. iconv -f GB18030 -t UTF-8"
        )


def _assign(
    train: Hashes, given: dict[str, Hashes], missing: dict[str, int], leak: str, report: Report
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The rows that stay in train, and those that become the splits that are missing."""
    keep = first_occurrences(train.pairs())
    report.drop("train", DUPLICATE, int((~keep).sum()))
    held = Hashes.joined(list(given.values()))
    leaking = keep & train.leaks(held, sentence=leak == "sentence")
    report.drop("train", LEAK, int(leaking.sum()))
    keep &= ~leaking
    cuts: dict[str, np.ndarray] = {}
    for split, size in missing.items():
        # The rest of a split that is cut shares no sentence with it, whatever data.leak says of given ones.
        candidates = np.flatnonzero(keep & ~train.leaks(held, sentence=True))
        if len(candidates) > 1:
            cuts[split] = cut(train, candidates, size)
            keep[cuts[split]] = False
            held = Hashes.joined([held, train.at(cuts[split])])
    if cuts:
        shared = keep & train.leaks(train.at(np.concatenate(list(cuts.values()))), sentence=True)
        report.drop("train", SHARED, int(shared.sum()))
        keep &= ~shared
    return np.flatnonzero(keep), cuts


def _write_cut(folder: Path, split: str, rows: np.ndarray) -> None:
    """Write rows of train as a split of their own."""
    for side, origin in (("src", "src"), ("tgt", "tgt"), ("references", "tgt")):
        texts = Texts(folder / f"train.{origin}")
        with RaggedWriter(folder / f"{split}.{side}", "uint8") as writer:
            writer.append_texts([texts[row].encode() for row in rows.tolist()])

"""The second half of preparing a corpus: a tokenizer for its clean sentences, and their ids on disk.

Knows: how the tokenizer's training sentences are drawn, and the faults that show only in pieces: too long,
and sides of very unequal length (pieces are comparable between languages where characters are not).
Refuses to know: where the texts came from, batches.

What it leaves beside each other in its folder: train.src, train.tgt (flat ids, as narrow as the vocabulary
allows), `rows.npy` (row i is sentence rows[i] of the texts), `corpus.npy`, `report.json`, and `content`, a
digest of which pairs were kept.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from dragoman.data.cleaning import TOO_LONG, UNEQUAL, Report
from dragoman.data.collate import flatten
from dragoman.data.store import RaggedWriter, Texts
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError

CHUNK = 20_000  # sentences encoded at a time
SAMPLE = 500_000  # sentences at most, of both sides together, that a tokenizer is trained on
SAMPLE_SEED = 1  # not the run's: runs that differ in their seed share their vocabulary
GRACE = (
    2  # pieces added to the shorter side before the ratio is taken: a word may well become a short sentence
)


def sample(texts: Path, sides: tuple[str, ...]) -> Iterator[str]:
    """Sentences of the training split to train a tokenizer on: of the same pairs for either side."""
    rows = np.load(texts / "train.rows.npy", mmap_mode="r")
    n_pairs = SAMPLE // 2
    if len(rows) > n_pairs:
        rows = np.sort(np.random.default_rng(SAMPLE_SEED).choice(rows, n_pairs, replace=False))
    for side in sides:
        sentences = Texts(texts / f"train.{side}")
        for row in rows.tolist():
            yield sentences[row]


def id_type(vocab_size: int) -> str:
    """The narrowest type that holds every id."""
    return "uint16" if vocab_size <= 2**16 else "int32"


def write_ids(
    texts: Path, folder: Path, src: Tokenizer, tgt: Tokenizer, max_length: int, max_ratio: float, threads: int
) -> None:
    """Encode the training split of `texts` into `folder`. Raises `UserError` when every pair is too long."""
    rows, corpus = np.load(texts / "train.rows.npy"), np.load(texts / "train.corpus.npy")
    src_texts, tgt_texts = Texts(texts / "train.src"), Texts(texts / "train.tgt")
    report = Report()
    kept = [np.empty(0, bool)]
    with (
        RaggedWriter(folder / "train.src", id_type(len(src))) as src_ids,
        RaggedWriter(folder / "train.tgt", id_type(len(tgt))) as tgt_ids,
        tqdm(total=len(rows), unit=" pairs", unit_scale=True, desc="encoding", disable=None) as bar,
    ):
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK]
            sides = [
                flatten(tokenizer.encode_batch(_sentences(sentences, chunk), threads=threads))
                for tokenizer, sentences in ((src, src_texts), (tgt, tgt_texts))
            ]
            (_, src_lengths), (_, tgt_lengths) = sides
            longer, shorter = np.maximum(src_lengths, tgt_lengths), np.minimum(src_lengths, tgt_lengths)
            too_long = longer > max_length
            unequal = (
                ~too_long & (longer > max_ratio * (shorter + GRACE)) if max_ratio else np.zeros_like(too_long)
            )
            report.drop("train", TOO_LONG, int(too_long.sum()))
            report.drop("train", UNEQUAL, int(unequal.sum()))
            kept.append(~too_long & ~unequal)
            for writer, (values, lengths) in zip((src_ids, tgt_ids), sides, strict=True):
                writer.append(values[np.repeat(kept[-1], lengths)], lengths[kept[-1]])
            bar.update(len(chunk))
    keep = np.concatenate(kept)
    if not keep.any():
        raise UserError(
            f"no training pair has at most data.max_length={max_length} pieces per side and a length ratio of at "
            f"most data.max_ratio={max_ratio}; raise them"
        )
    np.save(folder / "rows.npy", rows[keep])
    np.save(folder / "corpus.npy", corpus[keep])
    (folder / "content").write_text(hashlib.sha256(np.packbits(keep).tobytes()).hexdigest())
    report.kept["train"] = int(keep.sum())
    (folder / "report.json").write_text(json.dumps(report.as_dict()))


def _sentences(texts: Texts, rows: np.ndarray) -> list[str]:
    """The sentences of increasing `rows`, read in one piece: few rows between them have been dropped."""
    first = int(rows[0])
    chunk = texts.chunk(first, int(rows[-1]) + 1)
    return [chunk[row - first] for row in rows.tolist()]

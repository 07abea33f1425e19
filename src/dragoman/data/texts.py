"""First half of preparation: raw rows to clean sentences of three splits on disk.

The folder receives train.src and train.tgt with all clean training pairs, rows.npy (the pairs that stay),
corpus.npy (the index of each one's corpus), validation.json, test.json and report.json.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.progress import track

from dragoman.config import DataConfig
from dragoman.data.cleaning import Cleaner, assign_splits, hashes
from dragoman.data.readers import Corpus, Rows
from dragoman.data.store import RaggedWriter, Texts
from dragoman.data.text import Pair
from dragoman.errors import UserError


def write_texts(folder: Path, corpora: list[Corpus], config: DataConfig) -> None:
    """Fill `folder` from the corpora; take missing splits from train."""
    cleaner, parts = Cleaner(config), [corpus.config.part for corpus in corpora]
    held_out: dict[str, list[Pair]] = {"validation": [], "test": []}
    train, origins = [np.empty((2, 0), np.uint64)], [np.empty(0, np.uint16)]
    with RaggedWriter(folder / "train.src") as src, RaggedWriter(folder / "train.tgt") as tgt:
        for index, split, rows in track(_all_rows(corpora), "cleaning", disable=not sys.stdout.isatty()):
            clean = cleaner.clean(rows, split)
            if split == "train":
                sides = [[text.encode() for text in side] for side in (clean.src, clean.tgt)]
                for writer, texts in zip((src, tgt), sides, strict=True):
                    writer.append(b"".join(texts), list(map(len, texts)))
                train.append(hashes(*sides))
                origins.append(np.full(len(clean.src), index, np.uint16))
            else:
                columns = clean.src, clean.tgt, map(tuple, clean.references or [])
                held_out[split] += [Pair(*row, parts[index]) for row in zip(*columns, strict=True)]
    kept, chosen = _assign(np.hstack(train), held_out, cleaner, config)
    stored, corpus = [Texts(folder / f"train.{side}") for side in ("src", "tgt")], np.concatenate(origins)
    for split, indices in chosen.items():
        for i in indices.tolist():
            text, translation = stored[0][i], stored[1][i]
            held_out[split].append(Pair(text, translation, (translation,), parts[corpus[i]]))
    report = cleaner.report
    report.kept.update({"train": len(kept)} | {split: len(pairs) for split, pairs in held_out.items()})
    np.save(folder / "rows.npy", kept)
    np.save(folder / "corpus.npy", corpus[kept])
    for name, content in {**held_out, "report": report.as_dict()}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def _all_rows(corpora: list[Corpus]) -> Iterator[tuple[int, str, Rows]]:
    """Yield all rows, with the index of their corpus and their split."""
    for index, corpus in enumerate(corpora):
        for split, chunks in corpus.open().items():
            for rows in chunks:
                yield index, split, rows


def _assign(
    train: np.ndarray, held_out: dict[str, list[Pair]], cleaner: Cleaner, config: DataConfig
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return indices of `train`: the pairs to keep, and those of missing splits."""
    given = [(pair.src, text) for pairs in held_out.values() for pair in pairs for text in pair.references]
    sizes = {"validation": config.validation_size, "test": config.test_size}
    missing = {split: size for split, size in sizes.items() if size and not cleaner.report.read[split]}
    given_hashes = hashes(*([pair[side].encode() for pair in given] for side in (0, 1)))
    kept, chosen = assign_splits(train, given_hashes, missing, config.leak, cleaner.report)
    if not len(kept):
        reasons = cleaner.report.reasons("train") or "no pair was read"
        raise UserError(
            f"data.corpora: no training pair is left after cleaning ({reasons}). If the script is wrong, check whether "
            "data.src and data.tgt are swapped"
        )
    return kept, chosen

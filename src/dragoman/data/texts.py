"""First half of preparation: raw rows to clean sentences of three splits on disk.

The folder receives train.src and train.tgt with all clean training pairs, rows.npy (the pairs that stay),
corpus.npy (the index of each one's corpus), validation.json, test.json and report.json. With data.script=both the
forms in the other script stand behind their pairs, and stay where those stay.
"""

import json
import sys
from collections.abc import Iterator
from itertools import chain, compress
from pathlib import Path

import numpy as np
from rich.progress import track

from dragoman.config import DataConfig
from dragoman.data.cleaning import Cleaner, assign_splits, hashes
from dragoman.data.readers import Corpus, Rows
from dragoman.data.store import RaggedWriter, Texts
from dragoman.data.text import SYNTHETIC, Pair
from dragoman.errors import UserError

# A training pair: its row in train.src, the row of its form in the other script (-1: none), the index of its corpus.
_PAIR = np.dtype([("row", "i8"), ("other", "i8"), ("corpus", "u2"), ("synthetic", "?")])


def write_texts(folder: Path, corpora: list[Corpus], config: DataConfig) -> None:
    """Fill `folder` from the corpora; take missing splits from train."""
    cleaner, parts = Cleaner(config), [corpus.config.part for corpus in corpora]
    held_out: dict[str, list[Pair]] = {"validation": [], "test": []}
    train, tables, n_rows = [np.empty((2, 0), np.uint64)], [np.empty(0, _PAIR)], 0
    with RaggedWriter(folder / "train.src") as src, RaggedWriter(folder / "train.tgt") as tgt:
        for index, split, rows in track(_all_rows(corpora), "cleaning", disable=not sys.stdout.isatty()):
            clean = cleaner.clean(rows, split)
            if split == "train":
                table, sides = _forms(clean, cleaner, n_rows)
                for writer, texts in zip((src, tgt), sides, strict=True):
                    writer.append(b"".join(texts), list(map(len, texts)))
                n_rows, table["corpus"] = n_rows + len(sides[0]), index
                tables.append(table)
                train.append(hashes([cleaner.fold(text).encode() for text in clean.src], sides[1][: len(table)]))
            else:
                columns = clean.src, clean.tgt, map(tuple, clean.references or [])
                held_out[split] += [Pair(*row, parts[index]) for row in zip(*columns, strict=True)]
    pairs = np.concatenate(tables)
    kept, chosen = _assign(np.hstack(train), held_out, cleaner, config, pairs["synthetic"])
    stored = [Texts(folder / f"train.{side}") for side in ("src", "tgt")]
    for split, indices in chosen.items():
        for pair in pairs[indices]:
            text, translation = (side[pair["row"]] for side in stored)
            held_out[split].append(Pair(text, translation, (translation,), parts[pair["corpus"]]))
    kept_pairs = pairs[kept]
    both = kept_pairs[kept_pairs["other"] >= 0]
    report = cleaner.report
    report.kept.update({"train": len(kept) + len(both)} | {split: len(pairs) for split, pairs in held_out.items()})
    np.save(folder / "rows.npy", np.concatenate([kept_pairs["row"], both["other"]]))
    np.save(folder / "corpus.npy", np.concatenate([kept_pairs["corpus"], both["corpus"]]))
    for name, content in {**held_out, "report": report.as_dict()}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def _forms(clean: Rows, cleaner: Cleaner, first_row: int) -> tuple[np.ndarray, list[list[bytes]]]:
    """Return a table of _PAIR, and both sides to write: pairs, then their other forms."""
    table, others = np.zeros(len(clean.src), _PAIR), list(map(cleaner.other_script, clean.src))
    differs = np.array([other != text for other, text in zip(others, clean.src, strict=True)], bool)
    table["row"] = first_row + np.arange(len(table))
    table["other"] = np.where(differs, first_row + len(table) - 1 + np.cumsum(differs), -1)
    table["synthetic"] = [text.startswith(SYNTHETIC) for text in clean.src]
    sides = ((clean.src, others), (clean.tgt, clean.tgt))
    return table, [[text.encode() for text in (*side, *compress(forms, differs))] for side, forms in sides]


def _all_rows(corpora: list[Corpus]) -> Iterator[tuple[int, str, Rows]]:
    """Yield all rows, with the index of their corpus and their split."""
    for index, corpus in enumerate(corpora):
        for split, chunks in corpus.open().items():
            for rows in chunks:
                yield index, split, rows


def _assign(
    train: np.ndarray, held_out: dict[str, list[Pair]], cleaner: Cleaner, config: DataConfig, synthetic: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return indices of `train`: the pairs to keep, and those of missing splits."""
    pairs = chain(*held_out.values())
    given = [(cleaner.fold(pair.src), text) for pair in pairs for text in pair.references]
    sizes = {"validation": config.validation_size, "test": config.test_size}
    missing = {split: size for split, size in sizes.items() if size and not cleaner.report.read[split]}
    given_hashes = hashes(*([pair[side].encode() for pair in given] for side in (0, 1)))
    kept, chosen = assign_splits(train, given_hashes, missing, config.leak, cleaner.report, synthetic)
    if not len(kept):
        reasons = cleaner.report.reasons("train") or "no pair was read"
        raise UserError(
            f"data.corpora: no training pair is left after cleaning ({reasons}). If the script is wrong, check whether "
            "data.src and data.tgt are swapped"
        )
    return kept, chosen

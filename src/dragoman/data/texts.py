"""First half of preparation: raw rows to clean sentences of three splits on disk.

The folder receives train.src and train.tgt with all clean training pairs, rows.npy (the pairs that stay),
corpus.npy (the index of each one's corpus), validation.json, test.json and report.json. With data.script=both the
forms in the other script stand behind their pairs, and stay where those stay.
"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain, compress
from pathlib import Path

import numpy as np
from rich.progress import track

from dragoman.config import DataConfig
from dragoman.data.cleaning import Cleaner, Report, assign_splits, hashes
from dragoman.data.processes import in_order
from dragoman.data.readers import Corpus, Rows
from dragoman.data.store import RaggedWriter, Texts
from dragoman.data.text import SYNTHETIC, Pair
from dragoman.errors import UserError

# A training pair: its row in train.src, how many rows later its form in the other script is (0: none), the index of its
# corpus, whether its source is synthetic, the hash of each side.
_PAIR = np.dtype([("row", "i8"), ("other", "i4"), ("corpus", "u2"), ("synthetic", "?"), ("src", "u8"), ("tgt", "u8")])


def write_texts(folder: Path, corpora: list[Corpus], config: DataConfig) -> None:
    """Fill `folder` from the corpora; take missing splits from train."""
    cleaner, parts = Cleaner(config), [corpus.config.part for corpus in corpora]
    report, held_out = cleaner.report, {"validation": list[Pair](), "test": list[Pair]()}
    for split, pairs in held_out.items():
        for index, rows in _rows(corpora, split):
            clean = cleaner.clean(rows, split)
            columns = clean.src, clean.tgt, map(tuple, clean.references or [])
            pairs += [Pair(*row, parts[index]) for row in zip(*columns, strict=True)]
    tables, n_rows = [np.empty(0, _PAIR)], 0
    with RaggedWriter(folder / "train.src") as src, RaggedWriter(folder / "train.tgt") as tgt:
        chunks = in_order(partial(_clean, config), _rows(corpora, "train"), config.workers)
        for table, sides, counts in track(chunks, "cleaning", disable=not sys.stdout.isatty()):
            table["row"] += n_rows
            for writer, texts in zip((src, tgt), sides, strict=True):
                writer.append(b"".join(texts), list(map(len, texts)))
            n_rows += len(sides[0])
            tables.append(table)
            report.add(counts)
    train = np.concatenate(tables)
    tables.clear()
    kept, chosen = _assign(np.stack([train["src"], train["tgt"]]), held_out, cleaner, config, train["synthetic"])
    stored = [Texts(folder / f"train.{side}") for side in ("src", "tgt")]
    for split, indices in chosen.items():
        for pair in train[indices]:
            text, translation = (side[pair["row"]] for side in stored)
            held_out[split].append(Pair(text, translation, (translation,), parts[pair["corpus"]]))
    kept_pairs = train[kept]
    both = kept_pairs[kept_pairs["other"] > 0]
    report.kept.update({"train": len(kept) + len(both)} | {split: len(pairs) for split, pairs in held_out.items()})
    np.save(folder / "rows.npy", np.concatenate([kept_pairs["row"], both["row"] + both["other"]]))
    np.save(folder / "corpus.npy", np.concatenate([kept_pairs["corpus"], both["corpus"]]))
    for name, content in {**held_out, "report": report.as_dict()}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def _rows(corpora: list[Corpus], split: str) -> Iterator[tuple[int, Rows]]:
    """Yield all rows of a split, with the index of their corpus."""
    for index, corpus in enumerate(corpora):
        for rows in corpus.open().get(split, ()):
            yield index, rows


def _clean(config: DataConfig, chunk: tuple[int, Rows]) -> tuple[np.ndarray, list[list[bytes]], Report]:
    """Return a table of _PAIR, both sides to write, and the report of a chunk.

    A side is the sentences of the pairs, followed by those of their other forms. Rows count from 0.
    """
    cleaner, (corpus, rows) = Cleaner(config), chunk
    clean = cleaner.clean(rows, "train")
    table, others = np.zeros(len(clean.src), _PAIR), list(map(cleaner.other_script, clean.src))
    differs = np.array([other != text for other, text in zip(others, clean.src, strict=True)], bool)
    table["row"], table["corpus"] = np.arange(len(table)), corpus
    table["other"] = np.where(differs, len(table) - 1 + np.cumsum(differs) - table["row"], 0)
    table["synthetic"] = [text.startswith(SYNTHETIC) for text in clean.src]
    forms = ((clean.src, others), (clean.tgt, clean.tgt))
    src, tgt = ([text.encode() for text in (*side, *compress(other, differs))] for side, other in forms)
    table["src"], table["tgt"] = hashes([cleaner.fold(text).encode() for text in clean.src], tgt[: len(table)])
    return table, [src, tgt], cleaner.report


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

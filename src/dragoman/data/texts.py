"""First half of preparation: raw rows to clean sentences of three splits on disk.

The folder receives train.src and train.tgt with all clean training pairs, rows.npy (the pairs that stay),
corpus.npy (the index of each one's corpus), validation.json, test.json and report.json. With data.script=both the
form in the other script follows its pair, and stays where the pair stays.
"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from rich.progress import track

from dragoman.config import DataConfig
from dragoman.data.cleaning import Cleaner, Report, assign_splits, hashes
from dragoman.data.corpora import Corpus
from dragoman.data.processes import in_order
from dragoman.data.readers import Rows
from dragoman.data.store import Ragged, ragged_writer
from dragoman.data.text import SYNTHETIC, Pair
from dragoman.errors import UserError

# A training pair: its row in train.src, whether the next row is its form in the other script, the index of its corpus,
# whether its source is synthetic, the hash of each side.
_PAIR = np.dtype([("row", "i8"), ("both", "?"), ("corpus", "u2"), ("synthetic", "?"), ("src", "u8"), ("tgt", "u8")])


def write_texts(folder: Path, corpora: list[Corpus], config: DataConfig) -> None:
    """Fill `folder` from the corpora; take missing splits from train."""
    cleaner, parts = Cleaner(config), [corpus.config.part for corpus in corpora]
    report, held_out = cleaner.report, {"validation": list[Pair](), "test": list[Pair]()}
    for split, pairs in held_out.items():
        for index, rows in _rows(corpora, split):
            pairs += [pair._replace(corpus=parts[index]) for pair in cleaner.clean(rows, split)]
    tables, n_rows = [np.empty(0, _PAIR)], 0
    with ragged_writer(folder / "train.src") as write_src, ragged_writer(folder / "train.tgt") as write_tgt:
        chunks = in_order(partial(_clean, config), _rows(corpora, "train"), config.workers)
        for table, src, tgt, counts in track(chunks, "cleaning", disable=not sys.stdout.isatty()):
            write_src(b"".join(src), list(map(len, src)))
            write_tgt(b"".join(tgt), list(map(len, tgt)))
            table["row"] += n_rows
            n_rows += len(src)
            tables.append(table)
            report.add(counts)
    train = np.concatenate(tables)
    tables.clear()
    kept, chosen = _assign(train, held_out, cleaner, config)
    stored = [Ragged(folder / f"train.{side}") for side in ("src", "tgt")]
    for split, indices in chosen.items():
        for pair in train[indices]:
            text, translation = (side.text(pair["row"]) for side in stored)
            held_out[split].append(Pair(text, translation, (translation,), parts[pair["corpus"]]))
    both = kept[kept["both"]]
    report.kept.update({"train": len(kept) + len(both)} | {split: len(pairs) for split, pairs in held_out.items()})
    np.save(folder / "rows.npy", np.concatenate([kept["row"], both["row"] + 1]))
    np.save(folder / "corpus.npy", np.concatenate([kept["corpus"], both["corpus"]]))
    for name, content in {**held_out, "report": vars(report)}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def _rows(corpora: list[Corpus], split: str) -> Iterator[tuple[int, Rows]]:
    """Yield all rows of a split, with the index of their corpus."""
    for index, corpus in enumerate(corpora):
        for rows in corpus.open().get(split, ()):
            yield index, rows


def _clean(config: DataConfig, chunk: tuple[int, Rows]) -> tuple[np.ndarray, list[bytes], list[bytes], Report]:
    """Return a chunk as a table of _PAIR, rows from 0, sources, targets and report."""
    cleaner, (corpus, rows) = Cleaner(config), chunk
    pairs = cleaner.clean(rows, "train")
    forms = [cleaner.forms(pair.src) for pair in pairs]
    src = [form.encode() for each in forms for form in each]
    tgt = [pair.tgt.encode() for pair, each in zip(pairs, forms, strict=True) for _ in each]
    table, n_forms = np.zeros(len(pairs), _PAIR), np.array(list(map(len, forms)), np.int64)
    table["row"], table["both"], table["corpus"] = np.cumsum(n_forms) - n_forms, n_forms == 2, corpus
    table["synthetic"] = [pair.src.startswith(SYNTHETIC) for pair in pairs]
    table["src"], table["tgt"] = hashes([cleaner.fold(pair.src) for pair in pairs], [pair.tgt for pair in pairs])
    return table, src, tgt, cleaner.report


def _assign(
    train: np.ndarray, held_out: dict[str, list[Pair]], cleaner: Cleaner, config: DataConfig
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the rows of `train` to keep, and the indices of those of missing splits."""
    given = [(cleaner.fold(pair.src), text) for pair in chain(*held_out.values()) for text in pair.references]
    sizes = {"validation": config.validation_size, "test": config.test_size}
    missing = {split: size for split, size in sizes.items() if size and not cleaner.report.read[split]}
    given_hashes = hashes(*([pair[side] for pair in given] for side in (0, 1)))
    train_hashes = np.stack([train["src"], train["tgt"]])
    kept, chosen = assign_splits(train_hashes, given_hashes, missing, config.leak, cleaner.report, train["synthetic"])
    if not len(kept):
        reasons = cleaner.report.reasons("train") or "no pair was read"
        raise UserError(
            f"data.corpora: no training pair is left after cleaning ({reasons}). If the script is wrong, check whether "
            "data.src and data.tgt are swapped"
        )
    return train[kept], chosen

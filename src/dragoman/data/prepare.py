"""Preparation of corpora before training: find, clean, split, encode, store.

Each step writes one folder of the cache: texts-* (clean sentences), tokenizer-*, ids-*. The name of a folder has a
hash of the inputs of its step, so a second run on the same data reuses the folders. A run records in data.json which
optional corpora it found, and resumes with these.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, compress
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from rich.progress import track

from dragoman import files
from dragoman.config import DataConfig
from dragoman.data.cleaning import TOO_LONG, Cleaner, Report, assign_splits, characters_to_convert, hashes
from dragoman.data.processes import in_order
from dragoman.data.readers import Corpus, NotFoundError, Rows, find
from dragoman.data.store import Ragged, ragged_writer
from dragoman.data.text import SYNTHETIC, Pair
from dragoman.data.tokenizer import Tokenizer, check_config, suitable_size
from dragoman.errors import UserError

# Version of the cache; increase it with every change of the code that writes the folders.
FORMAT = 9
# Pairs that are encoded at a time.
_CHUNK = 20_000
# Maximum pairs that train a tokenizer. The seed does not depend on the run, so runs share tokenizers.
_SAMPLE, _SAMPLE_SEED = 100_000, 1
# A training pair: the row of its source, whether its form in the other script follows, the index of its corpus, whether
# its source is synthetic, the hash of each side.
_PAIR = np.dtype([("row", "i8"), ("both", "?"), ("corpus", "u2"), ("synthetic", "?"), ("src", "u8"), ("tgt", "u8")])


@dataclass
class Prepared:
    """A corpus ready for batching."""

    texts: Path
    ids: Path
    src_tokenizer: Tokenizer
    tgt_tokenizer: Tokenizer
    train_ids: Ragged  # row 2i is the source of pair i, row 2i + 1 its target
    repeats: np.ndarray  # (n,) how often each training pair appears in an epoch
    notes: list[str]

    def pairs(self, split: str) -> list[Pair]:
        """Return the validation or test pairs, if any."""
        rows = json.loads((self.texts / f"{split}.json").read_bytes())
        return [Pair(src, tgt, tuple(references), corpus) for src, tgt, references, corpus in rows]

    def fingerprint(self) -> str:
        """Return the sha256 of the training data, independent of its location."""
        parts = [self.src_tokenizer.path, self.tgt_tokenizer.path, self.texts / "validation.json"]
        parts += [self.ids / "train.values", self.ids / "train.offsets.npy"]
        digests = "".join(map(files.sha256, parts)).encode()
        return hashlib.sha256(digests + self.repeats.astype(np.int64).tobytes()).hexdigest()


def prepare(config: DataConfig, run_dir: Path) -> Prepared:
    """Prepare the corpora, or take them from the cache.

    Writes cleaning.json and data.json into `run_dir`. If several processes call it, one works and the others wait.
    """
    check_config(config.tokenizer, (config.src, config.tgt))
    run_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(run_dir / ".data.lock"):
        corpora, notes = _find_all(config, run_dir / "data.json")
        texts = _texts(config, corpora)
        src, tgt = _tokenizers(config, texts)
        ids = _ids(config, texts, src, tgt)
        repeats = np.array([corpus.config.repeat for corpus in corpora])[np.load(ids / "corpus.npy")]
        report = Report()
        report.add(json.loads((texts / "report.json").read_bytes()))
        report.drop("train", TOO_LONG, report.kept["train"] - len(repeats))
        report.kept["train"] = len(repeats)
        _print(report.table())
        _write_json(run_dir / "cleaning.json", vars(report) | {"notes": notes})
    return Prepared(texts, ids, src, tgt, Ragged(ids / "train", _id_type(src, tgt)), repeats, notes)


def _print(message: str) -> None:
    """Print in the first process of a machine only."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(message, flush=True)


def _write_json(path: Path, content: object) -> None:
    files.write(path, (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode())


def _find_all(config: DataConfig, record: Path) -> tuple[list[Corpus], list[str]]:
    """Return the corpora that the run uses, and notes on the others; update `record`."""
    used: dict[str, bool] = json.loads(record.read_bytes()) if record.exists() else {}
    corpora, notes = [], []
    for corpus in config.corpora:
        name = f"{corpus.label} {corpus.split}"
        if corpus.optional and used.get(name) is False:
            notes.append(f"{corpus.label}: this run started without it and resumes without it.")
            continue
        try:
            corpora.append(find(corpus, config.src, config.tgt, config.root))
            used[name] = True
        except NotFoundError as error:
            # A run that started with this corpus would resume on other data.
            if not corpus.optional or used.get(name):
                raise
            notes.append(f"{error}. This run trains without it: it is optional.")
            used[name] = False
    for note in notes:
        _print(note)
    if not corpora:
        raise UserError(
            f"data.corpora: none available. {' '.join(notes)} Name one, e.g. data.corpora='[{{path: my.tsv}}]'"
        )
    _write_json(record, used)
    return corpora, notes


def _folder(config: DataConfig, step: str, depends_on: list[Any], fill: Callable[[Path], None]) -> Path:
    """Return the cache folder of a step; `fill` writes it if it is missing."""
    digest = hashlib.sha256(json.dumps([FORMAT, *depends_on]).encode()).hexdigest()[:16]
    folder = Path(config.cache) / f"{step}-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        if not folder.exists():
            files.replace_folder(folder, fill)
    return folder


def _texts(config: DataConfig, corpora: list[Corpus]) -> Path:
    options = [config.src, config.tgt, config.script, config.leak, config.drop_copies, config.max_ratio]
    options += [config.validation_size, config.test_size, *map(str, config.every_direction)]
    parts, keys = [corpus.config.part for corpus in corpora], [corpus.key for corpus in corpora]
    return _folder(config, "texts", [*options, parts, keys], partial(_write_texts, corpora=corpora, config=config))


def _write_texts(folder: Path, corpora: list[Corpus], config: DataConfig) -> None:
    """Write the clean sentences of three splits; take missing splits from train.

    `train` has all training pairs, each source before its target. rows.npy has the rows of the sources to keep,
    corpus.npy the index of the corpus of each. With data.script=both the form in the other script follows its pair.
    """
    print(f"Cleaning {', '.join(corpus.config.label for corpus in corpora)}", flush=True)
    cleaner, parts = Cleaner(config), [corpus.config.part for corpus in corpora]
    report, held_out = cleaner.report, {"validation": list[Pair](), "test": list[Pair]()}
    for split, pairs in held_out.items():
        for index, rows in _rows(corpora, split):
            pairs += [pair._replace(corpus=parts[index]) for pair in cleaner.clean(rows, split)]
    train = _write_train(folder / "train", corpora, config, report)
    given = [(cleaner.fold(pair.src), text) for pair in chain(*held_out.values()) for text in pair.references]
    sizes = {"validation": config.validation_size, "test": config.test_size}
    missing = {split: size for split, size in sizes.items() if size and not report.read[split]}
    train_hashes = np.stack([train["src"], train["tgt"]])
    indices, chosen = assign_splits(train_hashes, hashes(given), missing, config.leak, report, train["synthetic"])
    if not len(indices):
        reasons = report.reasons("train") or "no pair was read"
        raise UserError(
            f"data.corpora: no training pair is left after cleaning ({reasons}). If the script is wrong, check whether "
            "data.src and data.tgt are swapped"
        )
    stored = Ragged(folder / "train")
    for split, own in chosen.items():
        sides = (stored.texts(train["row"][own] + side) for side in (0, 1))
        for src, tgt, corpus in zip(*sides, train["corpus"][own], strict=True):
            held_out[split].append(Pair(src, tgt, (tgt,), parts[corpus]))
    kept = train[indices]
    both = kept[kept["both"]]
    report.kept.update({"train": len(kept) + len(both)} | {split: len(pairs) for split, pairs in held_out.items()})
    np.save(folder / "rows.npy", np.concatenate([kept["row"], both["row"] + 2]))
    np.save(folder / "corpus.npy", np.concatenate([kept["corpus"], both["corpus"]]))
    for name, content in {**held_out, "report": vars(report)}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def _rows(corpora: list[Corpus], split: str) -> Iterator[tuple[int, Rows]]:
    """Yield all rows of a split, with the index of their corpus."""
    for index, corpus in enumerate(corpora):
        for rows in corpus.open().get(split, ()):
            yield index, rows


def _write_train(stem: Path, corpora: list[Corpus], config: DataConfig, report: Report) -> np.ndarray:
    """Write and count the clean training pairs; return their table of _PAIR."""
    tables, n_rows = [np.empty(0, _PAIR)], 0
    chunks = in_order(partial(_clean, config), _rows(corpora, "train"), config.workers)
    with ragged_writer(stem) as append:
        for table, sentences, counts in track(chunks, "cleaning", disable=not sys.stdout.isatty()):
            append(b"".join(sentences), list(map(len, sentences)))
            table["row"] += n_rows
            n_rows += len(sentences)
            tables.append(table)
            report.add(vars(counts))
    return np.concatenate(tables)


def _clean(config: DataConfig, chunk: tuple[int, Rows]) -> tuple[np.ndarray, list[bytes], Report]:
    """Return a chunk as a table of _PAIR, rows from 0, its sentences, and the report."""
    cleaner, (corpus, rows) = Cleaner(config), chunk
    pairs = cleaner.clean(rows, "train")
    forms = [cleaner.forms(pair.src) for pair in pairs]
    stored = [(form, pair.tgt) for pair, each in zip(pairs, forms, strict=True) for form in each]
    table = np.zeros(len(pairs), _PAIR)
    table["row"] = 2 * np.cumsum([0, *map(len, forms)])[:-1]
    table["both"], table["corpus"] = [len(each) == 2 for each in forms], corpus
    table["synthetic"] = [pair.src.startswith(SYNTHETIC) for pair in pairs]
    table["src"], table["tgt"] = hashes([(cleaner.fold(pair.src), pair.tgt) for pair in pairs])
    return table, [text.encode() for text in chain.from_iterable(stored)], cleaner.report


def _tokenizers(config: DataConfig, texts: Path) -> tuple[Tokenizer, Tokenizer]:
    """Return the source and target tokenizers; a joint tokenizer appears twice."""
    if paths := config.tokenizer.models:
        return Tokenizer(Path(paths[0])), Tokenizer(Path(paths[-1]))
    # Sampling does not change the vocabulary.
    options = asdict(replace(config.tokenizer, sampling=0.0))
    directions = config.every_direction
    tags = [direction.tgt for direction in directions] if len(directions) > 1 else []
    languages = [config.src, config.tgt]
    # The sides (0 source, 1 target) of each vocabulary.
    models = {"joint": [0, 1]} if config.tokenizer.vocabulary == "joint" else {"src": [0], "tgt": [1]}

    def fill(folder: Path) -> None:
        rows = np.load(texts / "rows.npy")
        sample = rows
        if len(rows) > _SAMPLE:
            sample = np.sort(np.random.default_rng(_SAMPLE_SEED).choice(rows, _SAMPLE, replace=False))
        for name, sides in models.items():
            sentences = [text for side in sides for text in Ragged(texts / "train").texts(sample + side)]
            size = config.tokenizer.vocab_size or suitable_size(sentences, len(rows), config.tokenizer)
            print(f"Training the {name} tokenizer: {config.tokenizer.kind}, {size:,} pieces", flush=True)
            settings, codes = replace(config.tokenizer, vocab_size=size), [languages[side] for side in sides]
            conversion = characters_to_convert(config.script, codes, sentences)
            Tokenizer.train(sentences, settings, folder / f"{name}.model", codes, tags, conversion)

    folder = _folder(config, "tokenizer", [texts.name, options, languages, tags], fill)
    loaded = [Tokenizer(folder / f"{name}.model") for name in models]
    return loaded[0], loaded[-1]


def _id_type(*tokenizers: Tokenizer) -> str:
    """Return the smallest integer type that holds every id."""
    return "uint16" if max(map(len, tokenizers)) <= 2**16 else "int32"


def _ids(config: DataConfig, texts: Path, *tokenizers: Tokenizer) -> Path:
    """Return the folder of the encoded training pairs of at most max_length pieces."""

    def fill(folder: Path) -> None:
        rows, masks = np.load(texts / "rows.npy"), []
        chunks = np.split(rows, range(_CHUNK, len(rows), _CHUNK))
        encode = partial(_encode, config.max_length, tokenizers, Ragged(texts / "train"))
        results = in_order(encode, chunks, config.workers)
        with ragged_writer(folder / "train") as append:
            for short, values, lengths in track(results, "encoding", len(chunks), disable=not sys.stdout.isatty()):
                masks.append(short)
                append(values.data, lengths)
        keep = np.concatenate(masks)
        if not keep.any():
            raise UserError(f"data.max_length={config.max_length}: no training pair is short enough. Raise it")
        np.save(folder / "rows.npy", rows[keep])
        np.save(folder / "corpus.npy", np.load(texts / "corpus.npy")[keep])

    hashes = (tokenizer.sha256 for tokenizer in tokenizers)
    return _folder(config, "ids", [texts.name, *hashes, config.max_length], fill)


def _encode(
    max_length: int, tokenizers: Sequence[Tokenizer], texts: Ragged, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return which pairs are short enough, their ids, and the lengths of their sides."""
    # Processes that share the work share the cores; -1 means one thread for each.
    threads = 1 if parent_process() else -1
    sides = (t.encode_batch(texts.texts(rows + side), threads) for side, t in enumerate(tokenizers))
    pairs = list(zip(*sides, strict=True))
    short = np.array([max(map(len, pair)) <= max_length for pair in pairs])
    ids = list(chain.from_iterable(compress(pairs, short)))
    return short, np.fromiter(chain.from_iterable(ids), _id_type(*tokenizers)), list(map(len, ids))

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
from dragoman.data.cleaning import TOO_LONG, Report, characters_to_convert
from dragoman.data.corpora import Corpus, NotFoundError, find
from dragoman.data.processes import in_order
from dragoman.data.store import Ragged, ragged_writer
from dragoman.data.text import Pair
from dragoman.data.texts import write_texts
from dragoman.data.tokenizer import Tokenizer, check_config, suitable_size
from dragoman.errors import UserError

# Version of the cache; increase it with every change of the code that writes the folders.
FORMAT = 8
# Pairs that are encoded at a time.
_CHUNK = 20_000
# Maximum pairs that train a tokenizer. The seed does not depend on the run, so runs share tokenizers.
_SAMPLE, _SAMPLE_SEED = 100_000, 1


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
        report = Report.read_from(texts / "report.json")
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
            f"data.corpora: none available. {' '.join(notes)} Name one, e.g. data.corpora=[{{path: my.tsv}}]"
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
    options += [config.validation_size, config.test_size]
    parts, keys = [corpus.config.part for corpus in corpora], [corpus.key for corpus in corpora]

    def fill(folder: Path) -> None:
        _print(f"Cleaning {', '.join(corpus.config.label for corpus in corpora)}")
        write_texts(folder, corpora, config)

    return _folder(config, "texts", [*options, parts, keys], fill)


def _tokenizers(config: DataConfig, texts: Path) -> tuple[Tokenizer, Tokenizer]:
    """Return the source and target tokenizers; a joint tokenizer appears twice."""
    if paths := config.tokenizer.models:
        return Tokenizer(Path(paths[0])), Tokenizer(Path(paths[-1]))
    options = asdict(config.tokenizer)
    # Sampling does not change the vocabulary.
    del options["sampling"]
    directions = config.every_direction
    tags = [direction.tgt for direction in directions] if len(directions) > 1 else []
    languages = {"src": config.src, "tgt": config.tgt}
    joint = config.tokenizer.vocabulary == "joint"
    models = {"joint": ["src", "tgt"]} if joint else {"src": ["src"], "tgt": ["tgt"]}

    def fill(folder: Path) -> None:
        n_pairs = len(np.load(texts / "rows.npy", mmap_mode="r"))
        for name, sides in models.items():
            size = config.tokenizer.vocab_size or suitable_size(_sample(texts, sides), n_pairs, config.tokenizer)
            _print(f"Training the {name} tokenizer: {config.tokenizer.kind}, {size:,} pieces")
            path, codes = folder / f"{name}.model", [languages[side] for side in sides]
            settings = replace(config.tokenizer, vocab_size=size)
            conversion = characters_to_convert(config.script, codes, _sample(texts, sides))
            Tokenizer.train(_sample(texts, sides), settings, path, codes, tags, conversion)

    folder = _folder(config, "tokenizer", [texts.name, options, languages, tags], fill)
    loaded = [Tokenizer(folder / f"{name}.model") for name in models]
    return loaded[0], loaded[-1]


def _sample(texts: Path, sides: list[str]) -> Iterator[str]:
    """Yield the sentences that train a tokenizer, from the same pairs for each side."""
    rows = np.load(texts / "rows.npy", mmap_mode="r")
    if len(rows) > _SAMPLE:
        rows = np.sort(np.random.default_rng(_SAMPLE_SEED).choice(rows, _SAMPLE, replace=False))
    for side in sides:
        yield from map(Ragged(texts / f"train.{side}").text, rows.tolist())


def _id_type(*tokenizers: Tokenizer) -> str:
    """Return the smallest integer type that holds every id."""
    return "uint16" if max(map(len, tokenizers)) <= 2**16 else "int32"


def _ids(config: DataConfig, texts: Path, *tokenizers: Tokenizer) -> Path:
    """Return the folder of the encoded training pairs of at most max_length pieces."""

    def fill(folder: Path) -> None:
        rows, masks = np.load(texts / "rows.npy"), []
        sides = [Ragged(texts / f"train.{side}") for side in ("src", "tgt")]
        chunks = np.split(rows, range(_CHUNK, len(rows), _CHUNK))
        results = in_order(partial(_encode, config.max_length, tokenizers, sides), chunks, config.workers)
        with ragged_writer(folder / "train") as append:
            for short, values, lengths in track(results, "encoding", len(chunks), disable=not sys.stdout.isatty()):
                masks.append(short)
                append(values.data, lengths)
        keep = np.concatenate(masks)
        if not keep.any():
            raise UserError(f"data.max_length={config.max_length}: no training pair is short enough. Raise it")
        np.save(folder / "rows.npy", rows[keep])
        np.save(folder / "corpus.npy", np.load(texts / "corpus.npy")[keep])

    hashes = [tokenizer.sha256 for tokenizer in tokenizers]
    return _folder(config, "ids", [texts.name, *hashes, config.max_length], fill)


def _encode(
    max_length: int, tokenizers: Sequence[Tokenizer], sides: list[Ragged], rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return which pairs are short enough, their ids, and the lengths of their sides."""
    texts = (list(map(side.text, rows.tolist())) for side in sides)
    # Processes that share the work share the cores.
    threads = 1 if parent_process() else os.cpu_count() or 1
    src, tgt = (t.encode_batch(side, threads) for t, side in zip(tokenizers, texts, strict=True))
    short = np.array([list(map(len, side)) for side in (src, tgt)]).max(axis=0) <= max_length
    ids = list(chain.from_iterable(compress(zip(src, tgt, strict=True), short)))
    return short, np.fromiter(chain.from_iterable(ids), _id_type(*tokenizers)), list(map(len, ids))

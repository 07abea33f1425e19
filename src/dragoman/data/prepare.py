"""Preparation of corpora before training: find, clean, split, encode, store.

A corpus is prepared in one folder of the cache, named by a hash of the corpora and settings, so a second run on the
same data reuses it. A run records in data.json which corpora it found, and resumes with these.
"""

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, compress
from pathlib import Path

import numpy as np
from filelock import FileLock
from rich.progress import track

from dragoman import files
from dragoman.config import DataConfig
from dragoman.data.cleaning import TOO_LONG, Cleaner, Report, assign_splits, character_map, hashes, reasons, summary
from dragoman.data.readers import Corpus, NotFoundError, Rows, find
from dragoman.data.store import Ragged, ragged_writer
from dragoman.data.text import SPLITS, SYNTHETIC, Pair
from dragoman.data.tokenizer import KINDS, Tokenizer, suitable_size
from dragoman.errors import UserError, check_choice

# Version of the cache; increase it with every change of the code that writes the folders.
FORMAT = 14
_CHUNK = 20_000  # pairs that are encoded at a time
# Maximum pairs that train a tokenizer. The seed does not depend on the run, so runs share tokenizers.
_SAMPLE, _SAMPLE_SEED = 100_000, 1
# A training pair: the index of its corpus, whether it is the previous pair in the other script, whether its source is
# synthetic, the hash of each side.
_PAIR = np.dtype([("corpus", "u2"), ("form", "?"), ("synthetic", "?"), ("src", "u8"), ("tgt", "u8")])


@dataclass
class Prepared:
    """A corpus ready for batching."""

    folder: Path
    src_tokenizer: Tokenizer
    tgt_tokenizer: Tokenizer
    train_ids: Ragged  # row 2i is the source of pair i, row 2i + 1 its target
    repeats: np.ndarray  # (n,) how often each training pair appears in an epoch
    notes: list[str]

    def pairs(self, split: str) -> list[Pair]:
        """Return the validation or test pairs, if any."""
        return read_pairs(self.folder / f"{split}.json")

    def fingerprint(self) -> str:
        """Return the sha256 of the training data, independent of its location."""
        parts = [self.src_tokenizer.path, self.tgt_tokenizer.path, self.folder / "validation.json"]
        parts += [Path(f"{self.train_ids.stem}.{suffix}") for suffix in ("values", "offsets.npy")]
        digests = "".join(map(files.sha256, parts)).encode()
        return hashlib.sha256(digests + self.repeats.astype(np.int64).tobytes()).hexdigest()


def read_pairs(path: Path) -> list[Pair]:
    """Read validation or test pairs that `prepare` has written."""
    return [Pair(src, tgt, tuple(references), corpus) for src, tgt, references, corpus in json.loads(path.read_bytes())]


def prepare(config: DataConfig, run_dir: Path) -> Prepared:
    """Prepare the corpora, or take them from the cache.

    Writes data.json, cleaning.json, and the validation and test pairs into `run_dir`. If several processes call it, one
    works and the others wait.
    """
    check_choice("data.tokenizer.kind", config.tokenizer.kind, KINDS[:2] if config.tokenizer.sampling else KINDS)
    run_dir.mkdir(parents=True, exist_ok=True)
    corpora, notes = _find_all(config, run_dir / "data.json")
    # Settings that only change batches are not part of the hash.
    tokenizer = replace(config.tokenizer, sampling=0.0, models=[])
    fixed = replace(config, tokenizer=tokenizer, corpora=[], root=None, lowercase=0.0, workers=0, cache="")
    fixed.max_tokens = config.longest
    inputs = [FORMAT, asdict(fixed), [Tokenizer(Path(path)).sha256 for path in config.tokenizer.models]]
    inputs += [(corpus.config.short_name, corpus.key) for corpus in corpora]
    folder = Path(config.cache) / hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not folder.exists():
            files.replace_folder(folder, partial(_write, corpora=corpora, config=config))
    corpus_of = np.load(folder / "corpus.npy")
    repeats = np.array([corpus.config.repeat for corpus in corpora])[corpus_of]
    prepared = Prepared(folder, *_tokenizers(config, folder), Ragged(folder / "train"), repeats, notes)
    names, validated = _names(corpora, config), {pair.corpus for pair in prepared.pairs("validation")}
    trained = {names[index] for index in np.unique(corpus_of)}
    if validated and validated < trained:  # each of these trains, too
        unseen = [c.config.label for c, name in zip(corpora, names, strict=True) if name in trained - validated]
        notes.append(f"{', '.join(unseen)}: no validation pairs, so only the other corpora decide which model is best")
    report = {split: Counter(counts) for split, counts in json.loads((folder / "report.json").read_bytes()).items()}
    if os.environ.get("LOCAL_RANK", "0") == "0":  # one process of a machine prints
        print(*notes, summary(report), sep="\n", flush=True)
    files.write(run_dir / "cleaning.json", json.dumps(report, indent=2).encode())
    for split in SPLITS[1:]:
        files.write(run_dir / f"{split}.pairs.json", (folder / f"{split}.json").read_bytes())
    return prepared


def _find_all(config: DataConfig, record: Path) -> tuple[list[Corpus], list[str]]:
    """Return the corpora that the run uses, and notes on the others; update `record`."""
    # A run without metrics.json has not trained yet, so a corpus that was missing may be added now.
    has_begun = record.with_name("metrics.json").exists() and record.exists()
    used = json.loads(record.read_bytes()) if has_begun else []
    corpora, notes = list[Corpus](), list[str]()
    for corpus in config.corpora:
        try:
            if has_begun and corpus.label not in used:
                raise NotFoundError(f"{corpus.label}: was missing when this run began")
            corpora.append(find(corpus, config.src, config.tgt, config.root))
            if corpus.split != "train" and [*corpora[-1].open()] != [corpus.split]:
                raise UserError(f"{corpus.label}: split={corpus.split} is for one file. Name a file of the folder")
        except NotFoundError as error:
            # A run that began with this corpus cannot resume without it.
            if not corpus.optional or corpus.label in used:
                raise
            notes.append(f"{error}. This run trains without it: it is optional.")
    if not corpora:
        raise UserError(f"data.corpora: none available. {' '.join(notes)} Name one: data.corpora='[{{path: my.tsv}}]'")
    files.write(record, json.dumps([corpus.config.label for corpus in corpora]).encode())
    return corpora, notes


def _names(corpora: list[Corpus], config: DataConfig) -> list[str]:
    """Name each corpus for the scores: by its short name if unique, else by its path."""
    taken = [*(corpus.config.short_name for corpus in corpora), *map(str, config.every_direction)]
    labels = [corpus.config.label.replace("/", "-") for corpus in corpora]
    return [name if taken.count(name) == 1 else label for name, label in zip(taken, labels, strict=False)]


def _rows(corpora: list[Corpus], split: str) -> Iterator[tuple[int, Rows]]:
    """Yield all rows of a split, with the index of their corpus."""
    for index, corpus in enumerate(corpora):
        for rows in corpus.open().get(split, ()):
            yield index, rows


def _write(folder: Path, corpora: list[Corpus], config: DataConfig) -> None:
    """Write all splits, encoded for training, the tokenizers and the report."""
    pairs, corpus_of, report = _write_texts(folder, corpora, config)
    texts = Ragged(folder / "texts")
    if not config.tokenizer.models:
        _train_tokenizers(folder, texts, pairs, config)
    tokenizers, kept = _tokenizers(config, folder), list[np.ndarray]()
    # The smallest integer type that holds every id.
    id_type = np.min_scalar_type(max(map(len, tokenizers)) - 1)
    chunks = np.split(pairs, range(_CHUNK, len(pairs), _CHUNK))
    with ragged_writer(folder / "train") as append:
        for chunk in track(chunks, "encoding", disable=not sys.stdout.isatty()):
            sides = (t.encode_batch(texts.texts(2 * chunk + side)) for side, t in enumerate(tokenizers))
            rows = list(zip(*sides, strict=True))
            is_short = np.array([max(map(len, row)) <= config.max_length for row in rows])
            ids = list(chain.from_iterable(compress(rows, is_short)))
            kept.append(chunk[is_short])
            append(np.fromiter(chain.from_iterable(ids), id_type).data, list(map(len, ids)))
    if not len(short := np.concatenate(kept)):
        raise UserError(f"data.max_length={config.max_length}: every training pair is longer. Raise it")
    report["train"] += Counter({TOO_LONG: len(pairs) - len(short), "kept": len(short)})
    np.save(folder / "corpus.npy", corpus_of[short])
    (folder / "report.json").write_text(json.dumps(report))
    for path in folder.glob("texts.*"):
        path.unlink()


def _write_texts(folder: Path, corpora: list[Corpus], config: DataConfig) -> tuple[np.ndarray, np.ndarray, Report]:
    """Write the clean sentences of three splits; take missing splits from train.

    `texts` has all training pairs, each source before its target. Returns the indices of the pairs to keep, the corpus
    of each pair, and the report. With data.script=both a pair is followed by its form in the other script.
    """
    print(f"Cleaning {', '.join(corpus.config.label for corpus in corpora)}", flush=True)
    parts, cleaner = _names(corpora, config), Cleaner(config)
    report, held_out = cleaner.report, {"validation": list[Pair](), "test": list[Pair]()}
    for split, pairs in held_out.items():
        for index, rows in _rows(corpora, split):
            pairs += [pair._replace(corpus=parts[index]) for pair in cleaner.clean(rows, split)]
    tables = [np.empty(0, _PAIR)]
    with ragged_writer(folder / "texts") as append:
        for index, rows in track(_rows(corpora, "train"), "cleaning", disable=not sys.stdout.isatty()):
            table, sentences = _clean(cleaner, index, rows)
            append(b"".join(sentences), list(map(len, sentences)))
            tables.append(table)
    train = np.concatenate(tables)
    own = np.flatnonzero(~train["form"])
    given = [(cleaner.fold(pair.src), text) for pair in chain(*held_out.values()) for text in pair.references]
    sizes = {"validation": config.validation_size, "test": config.test_size}
    missing = {split: size for split, size in sizes.items() if size and not report[split]["read"]}
    train_hashes, counts = np.stack([train["src"], train["tgt"]])[:, own], report["train"]
    keep, chosen = assign_splits(train_hashes, hashes(given), missing, config.leak, counts, train["synthetic"][own])
    if not keep.any():
        causes = reasons(counts) or "no pair was read"
        hint = f"If a TSV has other columns, name them all in a first line, e.g. id<TAB>{config.src}<TAB>{config.tgt}"
        hint = hint if "wrong script" in causes else "Run scripts/doctor.py on it"
        raise UserError(f"data.corpora: no training pair is left after cleaning ({causes}). {hint}")
    stored = Ragged(folder / "texts")
    for split, indices in chosen.items():
        sides = (stored.texts(2 * own[indices] + side) for side in (0, 1))
        for src, tgt, corpus in zip(*sides, train["corpus"][own[indices]], strict=True):
            held_out[split].append(Pair(src, tgt, (tgt,), parts[corpus]))
    # A pair and its form in the other script are kept or dropped together.
    kept = np.flatnonzero(keep[np.cumsum(~train["form"]) - 1])
    for split, pairs in held_out.items():
        report[split]["kept"] = len(pairs)
        (folder / f"{split}.json").write_text(json.dumps(pairs))
    return kept, train["corpus"], report


def _clean(cleaner: Cleaner, corpus: int, rows: Rows) -> tuple[np.ndarray, list[bytes]]:
    """Return the training pairs to keep as a table of _PAIR, and their sentences."""
    every = ((pair, form) for pair in cleaner.clean(rows, "train") for form in cleaner.forms(pair.src))
    pairs = [(src, pair.tgt, src != pair.src) for pair, src in every]
    table = np.zeros(len(pairs), _PAIR)
    table["corpus"], table["form"] = corpus, [is_form for _, _, is_form in pairs]
    table["synthetic"] = [src.startswith(SYNTHETIC) for src, _, _ in pairs]
    table["src"], table["tgt"] = hashes((cleaner.fold(src), tgt) for src, tgt, _ in pairs)
    return table, [text.encode() for src, tgt, _ in pairs for text in (src, tgt)]


def _train_tokenizers(folder: Path, texts: Ragged, pairs: np.ndarray, config: DataConfig) -> None:
    sample = np.sort(np.random.default_rng(_SAMPLE_SEED).choice(pairs, min(len(pairs), _SAMPLE), replace=False))
    directions, languages = config.every_direction, (config.src, config.tgt)
    tags = [direction.tgt for direction in directions] if len(directions) > 1 else []
    for name, sides in _vocabularies(config).items():
        sentences = [text for side in sides for text in texts.texts(2 * sample + side)]
        size = config.tokenizer.vocab_size or suitable_size(sentences, len(pairs), config.tokenizer)
        kind = f"{config.tokenizer.kind}, {size:,} pieces ({len(pairs):,} pairs)"
        print(f"Training the {name} tokenizer: {kind}", flush=True)
        settings, codes = replace(config.tokenizer, vocab_size=size), [languages[side] for side in sides]
        conversion = character_map(config.script, codes, sentences)
        Tokenizer.train(sentences, settings, folder / f"{name}.model", codes, tags, conversion)


def _vocabularies(config: DataConfig) -> dict[str, list[int]]:
    """Return the sides (0 source, 1 target) of each vocabulary."""
    return {"joint": [0, 1]} if config.tokenizer.vocabulary == "joint" else {"src": [0], "tgt": [1]}


def _tokenizers(config: DataConfig, ids: Path) -> tuple[Tokenizer, Tokenizer]:
    """Return the source and target tokenizers; a joint tokenizer appears twice."""
    paths = config.tokenizer.models or [str(ids / f"{name}.model") for name in _vocabularies(config)]
    return Tokenizer(Path(paths[0])), Tokenizer(Path(paths[-1]))

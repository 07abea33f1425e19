"""Everything that happens to a corpus once, before the first batch: find, clean, split, encode, store.

Knows: the configuration of the data, the order of the steps, and where their results are kept. Each step's
result lies in the cache in a folder named by a hash of all it depends on: texts-* (clean sentences),
tokenizer-*, ids-*. A second run, or another run of the same data, finds the folders and starts at once; there
is nothing to invalidate.
Refuses to know: epochs, ranks, Lightning.

A run remembers its corpora in `data.json`: one that was begun without an optional corpus goes on without it,
even when the hub is back, and one that was begun with it never falls back to less.
"""

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from dragoman import durable
from dragoman.data.cleaning import Cleaner, Report
from dragoman.data.corpus import CorpusConfig
from dragoman.data.digests import Digests
from dragoman.data.encoding import id_type, sample, write_ids
from dragoman.data.sources import ON_HUB, NotFoundError, Source, find
from dragoman.data.store import PairTable, Ragged, once, one_at_a_time
from dragoman.data.texts import write_texts
from dragoman.data.tokenizer import Tokenizer, TokenizerConfig
from dragoman.errors import UserError, suggest
from dragoman.languages import Direction, directions

FORMAT = 2  # of the folders in the cache; raised when the code that fills them changes what it writes
# Bytes written per byte of text: the clean texts, the ids, the offsets of both. What comes from the hub lies in the
# cache of `datasets` as well, and hub.py says how much that is.
DISK_FACTOR = 2.5
SCRIPTS = ("keep", "hans", "hant")
LEAKS = ("pair", "sentence")
PACKINGS = ("auto", "off", "rows", "flat")
PACKED_ROW = 256  # tokens of each side; longer where sentences may be longer


@dataclass(kw_only=True)
class DataConfig:
    """Which corpora, how they are cleaned, and how they become batches.

    packing: how many pairs a row of a training batch holds. "off": one, padded to the longest. "rows": as many as fit
    into 256 tokens, kept apart by masks, on any device and for any model. "flat": all of them in one row, no padding,
    by attention of variable length, which takes CUDA, bf16 or fp16 and a model without biases on its scores. The loss
    is the same. "auto": flat where it can be done (tried at the start), else off. Measured: the padding it saves
    (batching.py); and that masked rows cost a CPU about a tenth more time for a target token (small, tatoeba, fp32, one
    thread, 8 interleaved rounds at 1,024 and 4,096 tokens: 0.75 to 1.1 times the speed of padding). Not measured, for
    want of one: anything on a GPU. That flat wins there is expected, not known; scripts/bench_gpu.sh will tell.
    """

    src: str = "zh"  # language codes: column names, and which script a sentence must be in
    tgt: str = "en"
    directions: list[str] = field(
        default_factory=list
    )  # empty: src to tgt; [zh_en, en_zh]: one model for both
    corpora: list[CorpusConfig] = field(default_factory=list)
    root: str | None = None  # folder of local corpora; default: the environment variable DRAGOMAN_DATA
    script: str = "keep"  # Chinese characters: keep, or convert to hans (simplified) or hant (traditional)
    leak: str = "pair"  # drop training pairs that share a pair, or even one sentence, with validation or test
    drop_copies: bool = True  # drop training pairs whose source equals their target
    max_length: int = 256  # pieces per side; longer training pairs are dropped
    max_ratio: float = 3.0  # longer side / shorter side, in pieces; 0 = no limit
    validation_size: int = 1000  # cut from train where no corpus has such a split; at most 2 % of it
    test_size: int = 1000
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    max_tokens: int = 4096  # per batch: the larger of rows x longest source and rows x longest target
    packing: str = "auto"  # auto, off, rows or flat: see above
    workers: int = 0  # processes that collate; they change nothing but speed
    cache: str = "data/cache"

    def __post_init__(self) -> None:
        for key, value, choices in (
            ("script", self.script, SCRIPTS), ("leak", self.leak, LEAKS), ("packing", self.packing, PACKINGS),
        ):  # fmt: skip
            if value not in choices:
                raise UserError(
                    f"data.{key} is '{value}'{suggest(value, choices)}; choose from {', '.join(choices)}"
                )
        if self.src == self.tgt:
            raise UserError(f"data.src and data.tgt are both '{self.src}'; they name two different languages")
        if len(self.every_direction) > 1 and self.tokenizer.vocabulary != "joint":
            raise UserError(
                f"data.directions={self.directions} needs one vocabulary for both languages: set "
                "data.tokenizer.vocabulary=joint, or leave data.directions empty"
            )
        for key, least in (("max_length", 1), ("validation_size", 0), ("test_size", 0), ("workers", 0)):
            if getattr(self, key) < least:
                raise UserError(f"data.{key} is {getattr(self, key)}; it must be at least {least}")
        if self.max_ratio and self.max_ratio < 1:
            raise UserError(f"data.max_ratio is {self.max_ratio}; it must be at least 1, or 0 for no limit")
        if self.max_tokens < self.longest:
            raise UserError(
                f"data.max_tokens is {self.max_tokens} and data.max_length {self.max_length}: a sentence of that "
                "length and its <EOS> do not fit into a batch; raise the one or lower the other"
            )

    @property
    def every_direction(self) -> list[Direction]:
        """What the model shall translate: src to tgt, then tgt to src where that was asked for too."""
        return directions(self.directions, self.src, self.tgt, key="data.directions")

    @property
    def longest(self) -> int:
        """The most ids of a sentence: its pieces, <EOS> and, for a model of both directions, the tag."""
        return self.max_length + len(self.every_direction)

    @property
    def row_tokens(self) -> int:
        """Tokens of either side in a row of several pairs; 0: a pair a row, as where nobody has decided "auto"."""
        rows = min(self.max_tokens, max(PACKED_ROW, self.longest))
        return {"rows": rows, "flat": self.max_tokens}.get(self.packing, 0)


@dataclass(kw_only=True)
class Prepared:
    """A corpus ready to be batched."""

    texts: Path  # folder written by texts.py
    ids: Path  # folder written by encoding.py
    src_tokenizer: Tokenizer
    tgt_tokenizer: Tokenizer
    repeats: np.ndarray  # (n_corpora,) how often the pairs of each corpus are seen per epoch
    report: Report
    notes: list[str]
    fingerprint: str  # sha256 of all that training will see: equal data, equal fingerprint, wherever prepared

    def train_ids(self) -> tuple[Ragged, Ragged]:
        """The ids of the training pairs, source and target."""
        sides = (("train.src", self.src_tokenizer), ("train.tgt", self.tgt_tokenizer))
        src, tgt = (Ragged(self.ids / name, id_type(len(tokenizer))) for name, tokenizer in sides)
        return src, tgt

    def index(self) -> np.ndarray:
        """(pairs per epoch,) row numbers of the ids, those of repeated corpora several times."""
        corpus = np.load(self.ids / "corpus.npy")
        return np.repeat(np.arange(len(corpus)), self.repeats[corpus])

    def pairs(self, split: str) -> PairTable:
        """validation or test, on disk; empty where the corpora have none and none was cut."""
        return PairTable(self.texts / split)


def prepare(config: DataConfig, run_dir: Path) -> Prepared:
    """Do all of it, or find it done; write cleaning.json and data.json into `run_dir`.

    Safe to call from several processes at once: one works, the others wait and find its results.
    """
    if not config.corpora:
        raise UserError(
            "data.corpora is empty: name at least one corpus, e.g. data.corpora=[{path: my/folder}]"
        )
    cache = Path(config.cache)
    with one_at_a_time(run_dir / "data.json"):
        recorded = _recorded(run_dir)
        digests = Digests(cache / "digests.json")
        sources, notes = _find_all(config, recorded, digests)
        digests.keep()
        texts = _texts(config, sources, cache)
        src, tgt = _tokenizers(config, texts, cache)
        ids = _ids(config, texts, src, tgt, cache)
        report = Report.from_dict(json.loads((texts / "report.json").read_text()))
        report.add(Report.from_dict(json.loads((ids / "report.json").read_text())))
        repeats = np.array([source.config.repeat for source in sources])
        prepared = Prepared(
            texts=texts,
            ids=ids,
            src_tokenizer=src,
            tgt_tokenizer=tgt,
            repeats=repeats,
            report=report,
            notes=notes,
            fingerprint=_fingerprint(texts, ids, src, tgt, repeats),
        )
        say(report.table())
        _write_json(run_dir / "cleaning.json", report.as_dict() | {"notes": notes})
        _write_json(run_dir / "data.json", _record(config, sources, prepared))
    return prepared


def say(message: str) -> None:
    """Print for the person in front of the screen: once, however many processes train together."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(message, flush=True)


def _find_all(
    config: DataConfig, recorded: dict[str, dict], digests: Digests
) -> tuple[list[Source], list[str]]:
    """The corpora to use, and what is to be said about those that are not."""
    sources, notes = [], []
    for corpus in config.corpora:
        before = recorded.get(_name(corpus), {})
        if corpus.optional and before.get("used") is False:
            notes.append(
                f"This run was begun without {corpus.label} and goes on without it; a run of another name asks again."
            )
            continue
        try:
            sources.append(_find(corpus, config, digests, before.get("digest")))
        except NotFoundError as error:
            if not corpus.optional:
                raise
            if before:
                raise UserError(f"this run was begun with {corpus.label}, which is gone: {error}") from error
            reason = str(error)
            notes.append(f"{reason[:1].upper()}{reason[1:]}.")
            notes.append(f"Going on without {corpus.label}, which is optional; the run remembers this.")
    for note in notes:
        say(note)
    if not sources:
        raise UserError("none of data.corpora can be had: " + " ".join(notes))
    return sources, notes


def _find(corpus: CorpusConfig, config: DataConfig, digests: Digests, digest: str | None) -> Source:
    if digest and digest.startswith(ON_HUB):
        # The run knows what it took from the hub; while the cache holds it, nobody needs to be asked.
        again = lambda: find(corpus, config.src, config.tgt, config.root, refind=digest).open()  # noqa: E731
        return Source(config=corpus, digest=digest, n_bytes=0, open=again)
    return find(corpus, config.src, config.tgt, config.root, digest_of=digests.of)


def _texts(config: DataConfig, sources: list[Source], cache: Path) -> Path:
    """The folder of the clean texts."""
    sizes = {"validation": config.validation_size, "test": config.test_size}
    how = [config.src, config.tgt, config.script, config.leak, config.drop_copies, sizes]
    folder = cache / _key("texts", [source.digest for source in sources], *how)

    def fill(unfinished: Path) -> None:
        labels = ", ".join(source.config.label for source in sources)
        need = DISK_FACTOR * sum(source.n_bytes for source in sources) / 1e6
        free = shutil.disk_usage(cache).free / 1e6
        say(
            f"Preparing {labels}. This will take about {need:,.0f} MB of disk, under {cache}; "
            f"{free:,.0f} MB are free."
        )
        cleaner = Cleaner(
            src=config.src,
            tgt=config.tgt,
            script=config.script,
            drop_copies=config.drop_copies,
            report=Report(),
        )
        write_texts(sources, unfinished, cleaner, config.leak, sizes)

    if once(folder, fill):
        say(f"Clean texts found in {folder}.")
    return folder


def _tokenizers(config: DataConfig, texts: Path, cache: Path) -> tuple[Tokenizer, Tokenizer]:
    """Of source and target; the same one twice for a joint vocabulary."""
    wanted = config.tokenizer
    options = asdict(wanted)
    del options["sampling"]  # a way of using the vocabulary, not part of it
    asked = config.every_direction
    tags = [direction.tgt for direction in asked] if len(asked) > 1 else []
    folder = cache / _key(
        "tokenizer", (texts / "content").read_text(), options, config.src, config.tgt, *tags
    )
    joint = wanted.vocabulary == "joint"
    sides = {"joint": ("src", "tgt")} if joint else {"src": ("src",), "tgt": ("tgt",)}
    languages = {"src": config.src, "tgt": config.tgt}

    def fill(unfinished: Path) -> None:
        for name, its in sides.items():
            say(f"Training the {name} tokenizer: {wanted.kind}, {wanted.vocab_size:,} pieces.")
            path = unfinished / f"{name}.model"
            Tokenizer.train(sample(texts, its), wanted, path, [languages[side] for side in its], tags)

    if once(folder, fill):
        say(f"Tokenizer found in {folder}.")
    loaded = {name: Tokenizer.load(folder / f"{name}.model") for name in sides}
    for name, tokenizer in loaded.items():
        if len(tokenizer) < wanted.vocab_size:
            say(
                f"The {name} vocabulary shrank from {wanted.vocab_size:,} to {len(tokenizer):,} pieces: the corpus "
                "is too small for more."
            )
    return (loaded["joint"], loaded["joint"]) if joint else (loaded["src"], loaded["tgt"])


def _ids(config: DataConfig, texts: Path, src: Tokenizer, tgt: Tokenizer, cache: Path) -> Path:
    """The folder of the encoded training pairs."""
    folder = cache / _key("ids", texts.name, src.sha256, tgt.sha256, config.max_length, config.max_ratio)

    def fill(unfinished: Path) -> None:
        write_ids(
            texts, unfinished, src, tgt, config.max_length, config.max_ratio, threads=os.cpu_count() or 1
        )

    if once(folder, fill):
        say(f"Encoded corpus found in {folder}.")
    return folder


def _fingerprint(texts: Path, ids: Path, src: Tokenizer, tgt: Tokenizer, repeats: np.ndarray) -> str:
    content, kept = (texts / "content").read_text(), (ids / "content").read_text()
    # Directions need no part of their own: tags are pieces, and so the tokenizer tells one from both.
    seen = hashlib.sha256(repeats[np.load(ids / "corpus.npy")].astype(np.int64).tobytes()).hexdigest()
    return hashlib.sha256("\n".join((content, kept, seen, src.sha256, tgt.sha256)).encode()).hexdigest()


def _key(step: str, *depends_on: object) -> str:
    """The name of the folder of a step's result."""
    return f"{step}-{hashlib.sha256(json.dumps([FORMAT, *depends_on]).encode()).hexdigest()[:16]}"


def _name(corpus: CorpusConfig) -> str:
    """What data.json calls an entry of data.corpora."""
    return f"{corpus.label} {corpus.split}"


def _recorded(run_dir: Path) -> dict[str, dict]:
    """What data.json says about each corpus; nothing where the run is new."""
    try:
        corpora = json.loads((run_dir / "data.json").read_text())["corpora"]
        return {name: dict(entry) for name, entry in corpora.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"cannot read {run_dir / 'data.json'}, the run's record of its corpora: {error}"
        ) from error


def _record(config: DataConfig, sources: list[Source], prepared: Prepared) -> dict[str, object]:
    used = {_name(source.config): source.digest for source in sources}
    corpora = {_name(c): {"used": _name(c) in used, "digest": used.get(_name(c))} for c in config.corpora}
    return {"corpora": corpora, "fingerprint": prepared.fingerprint}


def _write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write(path, (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode())

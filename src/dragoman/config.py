"""Every setting of a run as a typed tree.

This module imports neither torch nor Hydra; compose.py fills the tree. Numbers and switches are checked when a
section is built. A `kind` is a plain string; the package with its registry checks it (`errors.choose`).
"""

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dragoman.errors import UserError, check_choice
from dragoman.languages import Direction, directions

# Settings that may be null, which means automatic. training/recipe.py replaces null before another module reads them.
if TYPE_CHECKING:
    AutoInt = int
    AutoFloat = float
else:
    AutoInt, AutoFloat = int | None, float | None


def number(default: float | None, lowest: float, highest: float = 1e12) -> Any:
    """A number within bounds, both included."""
    return field(default=default, metadata={"bounds": (lowest, highest)})


def one_of(*choices: str) -> Any:
    """A choice; the first one is the default."""
    return field(default=choices[0], metadata={"choices": choices})


@dataclass(kw_only=True)
class Section:
    """One part of the configuration, checked when built; `prefix` is for messages."""

    prefix: ClassVar[str]

    def __init_subclass__(cls, prefix: str = "") -> None:
        cls.prefix = prefix

    def __post_init__(self) -> None:
        for setting in fields(self):
            key, value = f"{self.prefix}{setting.name}", getattr(self, setting.name)
            if "choices" in setting.metadata:
                check_choice(key, value, setting.metadata["choices"])
            if "bounds" in setting.metadata and value is not None:
                lowest, highest = setting.metadata["bounds"]
                # The comparison is false for NaN too.
                if not lowest <= value <= highest:
                    allowed = f"at least {lowest:,}" if highest >= 1e12 else f"from {lowest:,} to {highest:,}"
                    raise UserError(f"{key}={value}: must be {allowed}")


@dataclass(kw_only=True)
class TokenizerConfig(Section, prefix="data.tokenizer."):
    """Settings of the tokenizer."""

    kind: str = "bpe"  # data/tokenizer.py: KINDS
    # Of each vocabulary, with 256 bytes and 4 special ids. Default: suitable_size in data/tokenizer.py
    vocab_size: int | None = number(None, 300)
    vocabulary: str = one_of("joint", "separate")  # one for both languages, or one each
    character_coverage: float = number(0.9995, 0.9, 1)  # characters with a piece; others are spelt in bytes
    models: list[str] = field(default_factory=list)  # trained sentencepiece files: a joint one, or source and target
    # Subword regularisation: the p of BPE-dropout, or the alpha of unigram; 0 = off
    sampling: float = number(0.0, 0, 0.99)


@dataclass(kw_only=True)
class CorpusConfig(Section, prefix="data.corpora: "):
    """One entry of `data.corpora`.

    Either `path`, or `src_path` and `tgt_path` for two aligned text files. `path` is a file (.tsv, .jsonl, .parquet,
    .tmx, also .gz), a folder laid out like a hub dataset, a hub dataset (`owner/name`), or `copy`, the generated copy
    task.
    """

    path: str | None = None
    name: str | None = None  # configuration of a hub dataset, e.g. en-zh of Helsinki-NLP/opus-100
    src_path: str | None = None
    tgt_path: str | None = None
    src_column: str | None = None  # default: the language code data.src
    tgt_column: str | None = None  # default: the language code data.tgt
    split: str = one_of("train", "validation", "test")  # of plain files; folders have their own
    repeat: int = number(1, 1)  # how often each training pair is seen per epoch
    optional: bool = False  # train without it if it is unavailable

    def __post_init__(self) -> None:
        super().__post_init__()
        given = bool(self.path), bool(self.src_path), bool(self.tgt_path)
        if given not in ((True, False, False), (False, True, True)):
            raise UserError("data.corpora: set either path, or both src_path and tgt_path")

    @property
    def label(self) -> str:
        """Name of the corpus in messages."""
        path = self.path or f"{self.src_path} + {self.tgt_path}"
        return f"{path} ({self.name})" if self.name else path

    @property
    def short_name(self) -> str:
        """Short name in validation scores: "written", "opus-100"."""
        return Path(self.path or self.src_path or "").name.split(".")[0]


@dataclass(kw_only=True)
class DataConfig(Section, prefix="data."):
    """Corpora, their cleaning, and the batches."""

    src: str = "zh"  # language codes: column names, and the script a sentence must be in
    tgt: str = "en"
    directions: list[str] = field(default_factory=list)  # empty: src to tgt; [zh_en, en_zh]: both in one model
    corpora: list[CorpusConfig] = field(default_factory=list)
    root: str | None = None  # folder of local corpora; default: the environment variable DRAGOMAN_DATA
    script: str = one_of("keep", "hans", "hant", "both")  # script of Chinese; both: train on both forms of a source
    leak: str = one_of("pair", "sentence")  # what training pairs may not share with validation and test
    drop_copies: bool = True  # drop training pairs whose source equals their target
    lowercase: float = number(0.0, 0, 1)  # share of the sources put in lower case, drawn again in each epoch
    max_length: int = number(256, 1)  # pieces per side; longer training pairs are dropped
    max_ratio: float = number(3.0, 0)  # longer side / shorter side, see data/cleaning.py; 0 = no limit
    validation_size: int = number(1000, 0)  # this and the next: at most so many pairs are split off train
    test_size: int = number(1000, 0)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    max_tokens: AutoInt = 4096  # per batch: the larger of rows x longest source and rows x longest target
    workers: int = number(0, 0)  # processes that make batches; 0: the main process makes them
    cache: str = "data/cache"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.src == self.tgt:
            raise UserError(f"data.tgt={self.tgt}: data.src is the same; name two languages")
        if len(self.every_direction) > 1 and self.tokenizer.vocabulary != "joint":
            raise UserError(f"data.directions={self.directions}: needs data.tokenizer.vocabulary=joint")
        if self.max_tokens is not None and self.max_tokens < self.longest:
            raise UserError(f"data.max_tokens={self.max_tokens}: too small for data.max_length={self.max_length}")

    @property
    def every_direction(self) -> list[Direction]:
        """The directions to learn: src to tgt, then tgt to src if both are configured."""
        return directions(self.directions, self.src, self.tgt, key="data.directions")

    @property
    def longest(self) -> int:
        """Maximum ids of a sentence: pieces, <EOS>, and the tag of a direction if any."""
        return self.max_length + len(self.every_direction)


@dataclass(kw_only=True)
class PositionConfig(Section, prefix="model.position."):
    """Position scheme `kind`, and the settings of some schemes."""

    kind: str = "sinusoidal"  # model/position.py: POSITIONS
    base: float = number(10000.0, 1.000001, 1e30)  # all schemes with sinusoids, and rope: larger = lower frequencies
    length: int = number(512, 2, 1 << 24)  # learned, unit, sentence_unit: how many positions there are
    start: str = one_of("random", "sinusoidal")  # learned: the first values
    n_buckets: int = number(32, 4, 1 << 24)  # t5
    max_distance: int = 128  # t5: more than n_buckets / 2


@dataclass(kw_only=True)
class EmbeddingConfig(Section):
    """Initial embeddings: random, or from `init`."""

    # "lexicon": source pieces start as means of their translations (training/initial.py); else a file of word vectors
    init: str | None = None


@dataclass(kw_only=True)
class ModelConfig(Section, prefix="model."):
    """Architecture of the model; the tokenizers give the vocabulary sizes."""

    d_model: AutoInt = number(256, 1, 1 << 16)
    d_ff: AutoInt = number(1024, 1, 1 << 18)
    n_heads: AutoInt = number(4, 1, 1024)
    n_encoder_layers: AutoInt = number(3, 1, 512)
    n_decoder_layers: AutoInt = number(3, 1, 512)
    dropout: AutoFloat = number(0.1, 0, 0.99)  # on embeddings and sub-layer outputs
    activation_dropout: AutoFloat = number(0.0, 0, 0.99)  # inside the feed-forward
    attention_dropout: float = number(0.0, 0, 0.99)  # on the attention weights
    activation: str = "relu"  # model/transformer.py: ACTIVATIONS
    norm: str = one_of("pre", "post")
    normalization: str = "layer_norm"  # model/transformer.py: NORMALIZATIONS
    tie: str = one_of("all", "tgt", "none")  # all: one matrix; tgt: target and output; none: three
    score: str = "scaled_dot"  # model/attention.py: SCORES
    position: PositionConfig = field(default_factory=PositionConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        unit = (self.n_heads or 1) * (2 if self.position.kind == "rope" else 1)  # rope rotates pairs of components
        if self.d_model is not None and self.n_heads is not None and self.d_model % unit:
            raise UserError(f"model.n_heads={self.n_heads}: model.d_model={self.d_model} is no multiple of {unit}")


@dataclass(kw_only=True)
class TrainingConfig(Section, prefix="training."):
    """Optimisation. Steps are optimizer steps."""

    optimizer: str = "adamw"  # training/module.py: OPTIMIZERS
    lr: AutoFloat = number(1e-3, 0)  # the peak
    schedule: str = "inverse_sqrt"  # training/module.py: SCHEDULES
    warmup_steps: AutoInt = number(1000, 0)
    label_smoothing: float = number(0.1, 0, 0.999)
    weight_decay: AutoFloat = number(1e-4, 0)
    beta1: float = number(0.9, 0, 0.99999)
    beta2: float = number(0.98, 0, 0.99999)
    clip_norm: float = number(1.0, 0)  # 0 = off
    accumulate: int = number(1, 1)  # micro-batches of an optimizer step
    ema: AutoFloat = number(0.0, 0, 0.999999)  # decay of the moving average that is validated and saved; 0 = off
    monitor: str = "bleu"  # best by this: a metric, loss, or a metric of one corpus, such as bleu_written
    patience: int = number(0, 0)  # stop after so many validations without a better one; 0 = off
    max_skipped: int = number(10, 1)  # stop when so many steps in a row had no finite gradient


@dataclass(kw_only=True)
class TrainerConfig(Section, prefix="trainer."):
    """Hardware, length, and how often to validate, log and save."""

    accelerator: str = one_of("auto", "cpu", "gpu", "mps")
    devices: int = number(1, 1)
    nodes: int = number(1, 1)
    precision: str = one_of("auto", "32", "bf16", "fp16")  # auto: bf16 where the hardware has it, else 32
    compile: bool = False  # torch.compile; slower on a CPU
    max_steps: int | None = number(100_000, 1)  # null: as many as fit into max_time; then the schedule ends
    max_time: str | None = None  # DD:HH:MM:SS of training, over all starts of the run
    validate_every: int = number(1000, 1)
    validation_pairs: int = number(1000, 1)  # translated at each validation
    metrics: list[str] = field(default_factory=lambda: ["bleu", "chrf"])  # of each validation; metrics.py: METRICS
    samples: int = number(8, 0)  # translations shown at each validation
    loggers: list[str] = field(default_factory=lambda: ["tensorboard"])  # training/progress.py: LOGGERS
    log_every: int = number(20, 1)
    save_minutes: float = number(5.0, 0)
    keep_snapshots: int = number(5, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_seconds is None and self.max_steps is None:
            raise UserError("trainer.max_steps=null: the run has no end. Set it, or trainer.max_time")

    @property
    def max_seconds(self) -> float | None:
        """max_time in seconds."""
        if self.max_time is None:
            return None
        # Four numbers, not all of them 0.
        if not re.fullmatch(r"(?=.*[1-9])\d+(:\d+){3}", self.max_time):
            raise UserError(f"trainer.max_time={self.max_time}: write days:hours:minutes:seconds, e.g. 00:00:10:00")
        days, hours, minutes, seconds = map(int, self.max_time.split(":"))
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@dataclass(kw_only=True)
class SearchConfig(Section, prefix="search."):
    """Search settings; the engine checks `kind` (torch: search/search.py: SEARCHES)."""

    kind: str = "beam"  # greedy, beam, sample
    beam_size: int = number(5, 1, 1000)
    length_penalty: float = number(1.0, -10, 10)  # scores are divided by length^length_penalty
    n_best: int = number(1, 1, 1000)
    temperature: float = number(1.0, 0.001, 1000)  # this and the next three: sample
    top_k: int = number(0, 0)  # 0 = all pieces
    top_p: float = number(1.0, 1e-6, 1)
    seed: int = number(1, 0, (1 << 63) - 1)  # each sentence has its own random numbers
    max_length_a: float = number(2.0, 0, 100)  # at most a * (source pieces) + b pieces, <EOS> not counted
    max_length_b: int = number(20, 1, 10_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "beam" and self.n_best > self.beam_size:
            raise UserError(f"search.n_best={self.n_best}: must be at most search.beam_size={self.beam_size}")

    def max_length(self, source_length: int, positions: int | None = None) -> int:
        """The most pieces of a translation; a limit of `positions` includes <BOS>."""
        longest = int(self.max_length_a * source_length + self.max_length_b)
        return min(longest, positions - 1) if positions else longest


@dataclass(kw_only=True)
class Config(Section):
    """All settings of one run."""

    name: str = "dragoman"
    seed: int = number(1, 0, 2**32 - 1)
    run_dir: str = "runs/${name}"
    preflight: bool = False  # estimate time and memory instead of training
    init_from: str | None = None  # a bundle, a run, or an export to transformers: weights and vocabulary
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[\w.=-]+", self.name):
            raise UserError(f"name={self.name}: use letters, digits, '_', '-', '=' and '.' (it names a folder)")
        if self.model.tie == "all" and (self.data.tokenizer.vocabulary == "separate" or self.data.tokenizer.models[1:]):
            raise UserError("model.tie=all: needs one vocabulary. Set data.tokenizer.vocabulary=joint or model.tie=tgt")

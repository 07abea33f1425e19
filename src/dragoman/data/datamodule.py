"""The data of a run, as Lightning asks for it."""

from dataclasses import dataclass, field

from dragoman.data.corpus import CorpusConfig
from dragoman.data.tokenizer import TokenizerConfig
from dragoman.errors import UserError, suggest

SCRIPTS = ("keep", "hans", "hant")
LEAKS = ("pair", "sentence")


@dataclass(kw_only=True)
class DataConfig:
    """Which corpora, how they are cleaned, and how they become batches."""

    src: str = "zh"  # language codes: column names, and which script a sentence must be in
    tgt: str = "en"
    corpora: list[CorpusConfig] = field(default_factory=list)
    root: str | None = None  # folder of local corpora; default: the environment variable DRAGOMAN_DATA
    script: str = "keep"  # Chinese characters: keep, or convert to hans (simplified) or hant (traditional)
    leak: str = "pair"  # remove training pairs that share a pair, or even one sentence, with validation or test
    drop_copies: bool = True  # drop training pairs whose source equals their target
    max_length: int = 256  # pieces per side; longer training pairs are dropped
    max_ratio: float = 3.0  # longer side / shorter side, in pieces; 0 = no limit
    validation_size: int = 1000  # cut from train where no corpus has such a split; at most 2 % of it
    test_size: int = 1000
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    max_tokens: int = 4096  # per batch: the larger of rows x longest source and rows x longest target
    workers: int = 0  # processes that collate; they change nothing but speed
    cache: str = "data/cache"

    def __post_init__(self) -> None:
        for key, value, choices in (("script", self.script, SCRIPTS), ("leak", self.leak, LEAKS)):
            if value not in choices:
                raise UserError(f"data.{key} is '{value}'{suggest(value, choices)}; choose from {', '.join(choices)}")
        if self.src == self.tgt:
            raise UserError(f"data.src and data.tgt are both '{self.src}'; they name two different languages")
        for key, least in (("max_length", 1), ("validation_size", 0), ("test_size", 0), ("workers", 0)):
            if getattr(self, key) < least:
                raise UserError(f"data.{key} is {getattr(self, key)}; it must be at least {least}")
        if self.max_ratio and self.max_ratio < 1:
            raise UserError(f"data.max_ratio is {self.max_ratio}; it must be at least 1, or 0 for no limit")
        if self.max_tokens <= self.max_length:
            raise UserError(
                f"data.max_tokens is {self.max_tokens} and data.max_length {self.max_length}: a sentence of that "
                "length and its <EOS> do not fit into a batch; raise the one or lower the other"
            )

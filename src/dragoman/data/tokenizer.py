"""Text to ids and back, by sentencepiece."""

from dataclasses import dataclass

from dragoman.errors import UserError, suggest

KINDS = ("unigram", "bpe", "char", "word")
VOCABULARIES = ("joint", "separate")


@dataclass(kw_only=True)
class TokenizerConfig:
    """How text becomes pieces."""

    kind: str = "unigram"
    vocab_size: int = 8000  # per vocabulary; the 256 bytes and 4 special ids are part of it
    vocabulary: str = "joint"  # one for both languages, or one each
    character_coverage: float = 0.9995  # share of the characters that get a piece; the others are spelt in bytes
    sampling: float = 0.0  # subword regularisation: BPE-dropout's p, or unigram's alpha; 0 = off

    def __post_init__(self) -> None:
        for key, value, choices in (("kind", self.kind, KINDS), ("vocabulary", self.vocabulary, VOCABULARIES)):
            if value not in choices:
                raise UserError(
                    f"data.tokenizer.{key} is '{value}'{suggest(value, choices)}; choose from {', '.join(choices)}"
                )
        if self.vocab_size < 300:
            raise UserError(
                f"data.tokenizer.vocab_size is {self.vocab_size}; 256 bytes and 4 special ids are always part of it, "
                "so it must be at least 300"
            )
        if not 0.9 <= self.character_coverage <= 1:
            raise UserError(
                f"data.tokenizer.character_coverage is {self.character_coverage}; it must be between 0.9 and 1"
            )
        if not 0 <= self.sampling < 1:
            raise UserError(f"data.tokenizer.sampling is {self.sampling}; it must be at least 0 and below 1")
        if self.sampling and self.kind in ("char", "word"):
            raise UserError(f"data.tokenizer.sampling needs kind unigram or bpe: {self.kind} has nothing to sample")

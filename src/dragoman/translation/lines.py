"""Lines to sentences with ids, and translated sentences to lines."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dragoman.data.sentences import split
from dragoman.data.text import clean_text
from dragoman.data.tokenizer import Tokenizer
from dragoman.languages import is_unspaced
from dragoman.search.hypothesis import Hypothesis
from dragoman.special import EOS

_CHARS_PER_PIECE = 4  # more than any vocabulary's average; bounds the text that is encoded at once


@dataclass(frozen=True)
class Candidate:
    """One translation: text, pieces (with <EOS> if reached) and their log-probs.

    `score` is the sum of log-probs over length^length_penalty. CTranslate2 gives no token_scores.
    """

    text: str
    score: float
    tokens: list[str]
    token_scores: list[float]


@dataclass(frozen=True)
class Translation:
    """The n_best translations of a line, best first, and warnings about the best."""

    hypotheses: list[Candidate]
    warnings: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text


class Sentence(NamedTuple):
    """A sentence of a line, cleaned."""

    text: str
    ids: list[int]  # with the tag of the target language; empty: copied, not translated
    space: str  # white space that follows it in the line


def sentences(
    text: str, tokenizer: Tokenizer, tag: list[int], max_length: int, max_chars: int | None = None
) -> Iterator[Sentence]:
    """Split a text into sentences of at most `max_length` pieces."""
    for part, space in split(text, max_chars or _CHARS_PER_PIECE * max_length):
        clean = clean_text(part)
        ids = tokenizer.encode(clean) if any(map(str.isalnum, clean)) else []
        if len(ids) <= max_length or len(part) == 1:
            yield Sentence(clean, tag + ids if ids else [], space)
        else:
            *halves, last = sentences(part, tokenizer, tag, max_length, (len(part) + 1) // 2)
            yield from (*halves, last._replace(space=last.space + space))


def join(parts: Sequence[tuple[Sentence, list[Hypothesis]]], rank: int, tokenizer: Tokenizer, tgt: str) -> Candidate:
    """Join the translations of this rank of a line's sentences, as `tgt` is written."""
    text = space = ""
    score, tokens, token_scores = 0.0, [], []
    for sentence, hypotheses in parts:
        translation = sentence.text
        if hypotheses:
            best = hypotheses[min(rank, len(hypotheses) - 1)]
            translation = clean_text(tokenizer.decode(best.ids))  # byte pieces can spell line breaks
            end = [EOS] if len(best.token_scores) > len(best.ids) else []
            score += best.score
            tokens += tokenizer.pieces([*best.ids, *end])
            token_scores += best.token_scores
        if translation:
            text += (_space_between(space, tgt) if text else "") + translation
        space = sentence.space
    return Candidate(text, score, tokens, token_scores)


def _space_between(space: str, tgt: str) -> str:
    """White space between sentences in `tgt`, given that of the source."""
    if "\n" in space:  # paragraphs stay paragraphs
        return space
    if is_unspaced(tgt):
        return ""
    return space if space and not space.strip(" \t") else " "  # an ideographic space is Chinese too


def in_lines(progress: Callable[[int], object], before: int, n_lines: int, n_sentences: int) -> Callable[[int], object]:
    """Convert an engine's counts of sentences into whole lines of the input."""
    return lambda n_done: progress(before + n_lines * n_done // n_sentences)

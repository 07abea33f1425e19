"""Split lines into sentences with ids, and join translated sentences into lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dragoman.data.sentences import split
from dragoman.data.text import clean_text
from dragoman.data.tokenizer import Tokenizer
from dragoman.languages import is_unspaced
from dragoman.search import Hypothesis
from dragoman.special import EOS

# Sentences with more characters per allowed piece are split before they are encoded, so no encoded text is very long.
_CHARS_PER_PIECE = 4


@dataclass(frozen=True)
class Candidate:
    """One translation of a line.

    score: sum of log-probs / length^length_penalty of each sentence, added up over the sentences.
    tokens: the pieces of all sentences, each with <EOS> if it was reached.
    token_scores: log-probs of the tokens, in nats. CTranslate2 gives none, and its tokens lack <EOS>.
    """

    text: str
    score: float
    tokens: list[str]
    token_scores: list[float]


@dataclass(frozen=True)
class Translation:
    """The n_best translations of a line, best first, and warnings about the first."""

    hypotheses: list[Candidate]
    warnings: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text


class Sentence(NamedTuple):
    """A sentence of a line, cleaned. Without ids it is copied, not translated."""

    text: str
    ids: list[int]  # with the tag of the target language, without <EOS>
    space: str  # white space after the sentence in the line


def sentences(
    text: str, tokenizer: Tokenizer, tag: list[int], max_length: int, max_chars: int | None = None
) -> Iterator[Sentence]:
    """Split a text into sentences of at most `max_length` pieces, without `tag`.

    A sentence that is too long is split again, at half its length. A single character is never split.
    """
    for part, space in split(text, max_chars or _CHARS_PER_PIECE * max_length):
        clean = clean_text(part)
        ids = tokenizer.encode(clean) if any(map(str.isalnum, clean)) else []
        if len(ids) <= max_length or len(part) == 1:
            yield Sentence(clean, tag + ids if ids else [], space)
        else:
            *first, last = sentences(part, tokenizer, tag, max_length, (len(part) + 1) // 2)
            yield from first
            yield last._replace(space=last.space + space)


def join(parts: Sequence[tuple[Sentence, list[Hypothesis]]], rank: int, tokenizer: Tokenizer, tgt: str) -> Candidate:
    """Join one hypothesis per sentence into a translation of the line into `tgt`.

    `rank` 0 takes the best hypothesis of each sentence; a sentence with fewer hypotheses gives its last one.
    """
    text = space = ""
    score, tokens, token_scores = 0.0, [], []
    for sentence, hypotheses in parts:
        translation = sentence.text
        if hypotheses:
            hypothesis = hypotheses[min(rank, len(hypotheses) - 1)]
            # Byte pieces can decode to line breaks.
            translation = clean_text(tokenizer.decode(hypothesis.ids))
            end = [EOS] if len(hypothesis.token_scores) > len(hypothesis.ids) else []
            score += hypothesis.score
            tokens += tokenizer.pieces([*hypothesis.ids, *end])
            token_scores += hypothesis.token_scores
        if translation:
            text += (_space_between(space, tgt) if text else "") + translation
        space = sentence.space
    return Candidate(text, score, tokens, token_scores)


def _space_between(space: str, tgt: str) -> str:
    """Return the white space between two sentences in `tgt`; `space` is the source's."""
    if "\n" in space:
        return space
    if is_unspaced(tgt):
        return ""
    # No space, or another one, such as the ideographic space of Chinese, becomes a space.
    return " " if space.strip(" \t") else space or " "

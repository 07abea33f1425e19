"""Lines: split into sentences, joined again, and examined for mistakes."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dragoman.bundle import BundleInfo
from dragoman.data.text import clean_text, split_sentences
from dragoman.data.tokenizer import Tokenizer
from dragoman.languages import Direction, is_unspaced, length, reads
from dragoman.search import Hypothesis
from dragoman.special import EOS

# A sentence of more characters per allowed piece is split before it is encoded, to bound the work.
_CHARS_PER_PIECE = 16
MAX_RATIO, EXTRA_LETTERS = 3.0, 20  # of lengths; EXTRA_LETTERS letters are added to the shorter side
# Two letters or more (in the source: one or more), four times in a row. A repetition begins at the
# beginning of a word, because a search from every letter would take much longer.
_LOOP = re.compile(r"(?<![a-z])(\w[^.!?。！？]{0,60}?\w)(?:[\s,，、.。]*\1){3}", re.IGNORECASE)
_SOURCE_LOOP = re.compile(r"(\w.{0,60}?)(?:[\s,，、.。]*\1){3}", re.IGNORECASE)
MAX_NAME_WORDS = 3  # a name may stay as it is
# List marks at the beginning, web and e-mail addresses. They are copied.
_COPIED = re.compile(
    r"(^[\d０-９]{1,3}[.．)、）](?=\s|[^\s\d０-９])|^[-*•·](?=\s)"
    r"|(?:(?:https?://|www\.)[!-~]*[\w/]|[\w.+-]+@[\w-]+\.[\w.-]*\w)[.。]*)", re.ASCII
)  # fmt: skip
_PLAIN = str.maketrans("’‘“”–—", "''\"\"--")  # for characters that the vocabulary lacks


@dataclass(frozen=True)
class Candidate:
    """One translation of a line.

    score: sum over the sentences of (sum of log-probs / length^length_penalty).
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
    warnings: list[str]

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text


class Sentence(NamedTuple):
    """A sentence of a line, cleaned. Without ids it is copied, not translated."""

    text: str
    ids: list[int]  # with the tag of the target language, without <EOS>
    space: str  # white space after the sentence in the line
    is_part: bool = False  # of a sentence that is too long


def sentences(text: str, tokenizer: Tokenizer, tag: list[int], longest: int, max_chars: int = 0) -> Iterator[Sentence]:
    """Split a text into sentences of at most `longest` pieces, `tag` not counted.

    A sentence that is too long is split again, at half its length. A single character is never split. Addresses, list
    marks, and symbols such as emoji that the vocabulary lacks are sentences of their own, so they are copied.
    """
    for part, space in split_sentences(text, max_chars or _CHARS_PER_PIECE * longest):
        for clean, copied in _parts(clean_text(part), tokenizer):
            ids = [] if copied else tokenizer.encode(clean)
            if len(ids) <= longest or len(clean) == 1:
                yield Sentence(clean, tag + ids if ids else [], "")
            else:
                halves = sentences(clean, tokenizer, tag, longest, (len(clean) + 1) // 2)
                yield from (half._replace(is_part=True) for half in halves)
        yield Sentence("", [], space)  # the white space after all of them


def _parts(text: str, tokenizer: Tokenizer) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a sentence, and whether each is copied.

    ALL CAPITALS become All capitals. Marks of copied parts become plain: 2、 -> 2.
    """
    for n, part in enumerate(_COPIED.split(text)):
        if n % 2:
            yield unicodedata.normalize("NFKC", part).replace("、", ".").replace("。", "."), True
            continue
        if " " in part and 2 * sum(map(str.isupper, part)) > len(part):
            part = part.capitalize()
        for plain in filter(None, _without_symbols(part.strip(), tokenizer)):
            yield plain, not any(map(str.isalnum, plain))


def _without_symbols(text: str, tokenizer: Tokenizer) -> list[str]:
    """Split a sentence around the symbols, such as emoji, that the vocabulary lacks.

    ２ and ％ become 2 and % if it lacks them. Final punctuation stays in its sentence: 好吃👍！ -> 好吃！ 👍
    """
    if not any(map(str.isalnum, text)) or not _in_bytes(tokenizer, text):
        return [text]
    unknown = {c for c in text if _in_bytes(tokenizer, c)}
    simpler = {c: unicodedata.normalize("NFKC", c.translate(_PLAIN)) for c in unknown}
    plain = {c: known for c, known in simpler.items() if not _in_bytes(tokenizer, known)}
    text = "".join(plain.get(c, c) for c in text)
    symbols = {"\u200d", "\ufe0f"}.union(c for c in unknown - plain.keys() if unicodedata.category(c)[0] == "S")
    inside = re.escape("".join(symbols))
    text = re.sub(f"([{inside}]+)([^\\w{inside}]*)$", r"\2\1", text)
    return [part.strip() for part in re.split(f"([{inside}]+)", text) if part.strip()]


def join(parts: Sequence[tuple[Sentence, list[Hypothesis]]], direction: Direction, bundle: BundleInfo) -> Translation:
    """Join the hypotheses of a line's sentences; a sentence without any is copied."""
    ranks = range(max([1, *(len(hypotheses) for _, hypotheses in parts)]))
    candidates = [_candidate(parts, rank, direction, bundle.tgt_tokenizer) for rank in ranks]
    source = " ".join(sentence.text for sentence, _ in parts)
    messages = list(warnings(source, candidates[0].text, direction, bundle.src_tokenizer))
    if any(sentence.is_part for sentence, _ in parts):
        messages.append("unusual length: longer than nearly all training sentences")
    return Translation(candidates, messages)


def _candidate(
    parts: Sequence[tuple[Sentence, list[Hypothesis]]], rank: int, direction: Direction, tokenizer: Tokenizer
) -> Candidate:
    """Join hypothesis `rank` of each sentence, or its last one if it has fewer."""
    text = space = ""
    separator = "" if is_unspaced(direction.tgt) else " "
    score, tokens, token_scores = 0.0, [], []
    for sentence, hypotheses in parts:
        translation = sentence.text
        if hypotheses:
            ids, own_score, own_scores = hypotheses[min(rank, len(hypotheses) - 1)]
            # Byte pieces can decode to line breaks.
            translation = clean_text(tokenizer.decode(ids))
            score += own_score
            tokens += tokenizer.pieces([*ids, EOS] if len(own_scores) > len(ids) else ids)
            token_scores += own_scores
        if text and translation:
            text += space if "\n" in space else separator
        text += translation
        space = sentence.space
    return Candidate(text, score, tokens, token_scores)


def warnings(source: str, translation: str, direction: Direction, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield `kind` or `kind: details` per matching rule, if the source has words."""
    if not _bare(source):
        return
    if (loop := _LOOP.search(translation)) and not _SOURCE_LOOP.search(source):
        yield f"repetition: '{loop[1][:20]}'"
    # `reads` goes by the majority of the letters, and would accept an English line with one Chinese word.
    has_cjk = length(translation) > len(translation) and not reads(direction.tgt, "中")
    if has_cjk or not reads(direction.tgt, translation):
        yield f"not written in the script of '{direction.tgt}'"
    elif _bare(source) == _bare(translation) and _n_words(source) > MAX_NAME_WORDS:
        yield "copy of the source"
    if not reads(direction.src, source) and _n_words(source) > MAX_NAME_WORDS:
        yield f"source not written in the script of '{direction.src}'"
    # The whole line is tested first, because most lines have no unknown character.
    letters = list(filter(str.isalpha, dict.fromkeys(source))) if _in_bytes(tokenizer, source) else []
    if unknown := [letter for letter in letters if _in_bytes(tokenizer, letter)]:
        yield f"characters outside the vocabulary: {''.join(unknown[:10])}"
    digits = re.sub(r"(?<=\d)[ ,](?=\d)", "", translation)
    if lost := [number for number in re.findall(r"\d{7,}+(?<!000)", source) if number not in digits]:
        yield f"changed number: {lost[0]}"
    shorter, longer = sorted(map(length, (source, translation)))
    if longer > MAX_RATIO * (shorter + EXTRA_LETTERS):
        yield f"unusual length: much {'longer' if length(translation) == longer else 'shorter'} than the source"


def _bare(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())


def _n_words(text: str) -> int:
    """The number of words; two Chinese characters (`length` adds 2 each) are one."""
    return max(len(text.split()), (length(text) - len(text)) // 4)


def _in_bytes(tokenizer: Tokenizer, text: str) -> bool:
    """Whether the vocabulary spells a character of the text in bytes."""
    return any(piece.startswith("<0x") for piece in tokenizer.pieces(tokenizer.encode(text)))

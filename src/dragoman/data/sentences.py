"""Cutting a long text into sentences, by rule, for Chinese and English, and losing nothing.

A model trained on single sentences translates the first one of a paragraph and forgets the rest, so the
translator hands it one sentence at a time. This file knows where sentences end: marks, the quotes that
close after them, abbreviations, decimals, hesitation dots. It refuses to know about models and tokens.

The promise is exact: the pieces, joined in order, are the text. When the rules cannot tell, they do not
cut: two sentences in one piece cost less than half a sentence in two. One scan from left to right, with
bounded looks to either side, so that the time is linear in the length of the text whatever it holds.
"""

import re
import unicodedata
from collections.abc import Iterator

Piece = tuple[str, str]  # (sentence without outer whitespace, the whitespace that follows it)

_LINE_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_MARKS = "。｡！？；．….!?"  # a run of them is judged as a whole
_FULL = frozenset("。｡！？；")  # these end a sentence whatever follows
_CLOSERS = "”’」』）】》〉］｝\"')]}»"
# Line breaks, or marks and what closes after them. Possessive character classes: no backtracking.
_BOUNDARY = re.compile(f"[{_LINE_BREAKS}]++|[{re.escape(_MARKS)}]++[{re.escape(_CLOSERS)}]*+")
_WHITESPACE = re.compile(r"\s*+")
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘《「]*\Z")
_INITIALS = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")  # U.S, e.g, a.m (the last dot is the mark in question)
_CONTINUES = frozenset("，、,：:；;—–-）)]】》〉")  # after a mark: the sentence is not over yet
_CLAUSE_ENDS = re.compile(r"[，、；：—]\s*+|[,;:]\s++")
_LOOK_BACK = 24  # characters: longer than any abbreviation

# Words whose dot never ends a sentence, even before a capital: a name follows.
_BEFORE_NAMES = re.compile(
    "mr|mrs|ms|mx|dr|prof|st|gen|col|lt|sgt|capt|cmdr|adm|maj|sen|rep|gov|pres|rev|hon|fr|messrs|mme|mlle"
    "|vs|cf|viz|ca",
    re.IGNORECASE,
)
# Words whose dot does not end a sentence when a number follows: No. 5, Fig. 3, Dec. 24.
_BEFORE_NUMBERS = re.compile(
    "no|nos|vol|vols|p|pp|ch|sec|art|eq|fig|figs|approx|est|jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec",
    re.IGNORECASE,
)
_MAY_END = frozenset(("a.m", "p.m"))  # of the words with inner dots, these do end sentences


def split(text: str, max_chars: int | None = None) -> list[Piece]:
    """The sentences of a text, each with the whitespace after it; all of them joined are the text.

    Line breaks always end a sentence. Leading whitespace belongs to a first, empty sentence. With
    `max_chars`, longer sentences are cut further: after a comma, else between words, else anywhere.
    """
    if max_chars is not None and max_chars < 1:
        raise ValueError(f"max_chars must be at least 1, not {max_chars}")
    return [
        part
        for sentence, space in _sentences(text)
        for part in (_cut(sentence, space, max_chars) if max_chars else [(sentence, space)])
    ]


def _sentences(text: str) -> Iterator[Piece]:
    start = _WHITESPACE.match(text).end()  # type: ignore[union-attr]  # it matches everywhere
    if start:
        yield "", text[:start]
    for match in _BOUNDARY.finditer(text, start):
        if match.start() < start or not _ends_sentence(text, start, match):
            continue
        end = _WHITESPACE.match(text, match.end()).end()  # type: ignore[union-attr]
        yield _piece(text[start:end])
        start = end
    if start < len(text):
        yield _piece(text[start:])


def _piece(raw: str) -> Piece:
    sentence = raw.rstrip()
    return sentence, raw[len(sentence) :]


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether the run of marks found by _BOUNDARY ends the sentence that began at `start`."""
    found = match.group()
    if found[0] in _LINE_BREAKS:
        return True
    marks = found.rstrip(_CLOSERS)
    closers = found[len(marks) :]
    after = text[match.end() : match.end() + 1]
    if after in _CONTINUES:
        return False
    spaced = after.isspace()
    if not spaced and any(closer in "》〉）)]】" for closer in closers):
        return False  # the mark belongs to a title or a remark: 《你好！》这本书, 他（真的！）来了
    if any(mark in _FULL for mark in marks):
        return True
    before = text[match.start() - 1 : match.start()]
    if not spaced:  # 你好!我是… and 很好.他 end; 3.14, e.g., www.a.b, what?!x and 我…… hesitating do not
        return len(marks) == 1 and marks != "…" and _is_cjk(before) and _is_cjk(after)
    if "!" in marks or "?" in marks:
        return not _goes_on(text, match.end(), closers)
    if _goes_on(text, match.end(), ""):
        return False
    return marks != "." or bool(closers) or not _is_abbreviation(text, start, match.start())


def _goes_on(text: str, end: int, closers: str) -> bool:
    """Whether a lower-case letter comes next: "Wait! he said" only counts after a closing quote."""
    return (not closers or closers[-1] in "\"'”’") and _next_visible(text, end).islower()


def _next_visible(text: str, position: int) -> str:
    """The next character, nearby, that is neither white nor an opening quote or bracket."""
    return text[position : position + _LOOK_BACK].lstrip().lstrip("\"'“‘([{「『《")[:1]


def _is_abbreviation(text: str, start: int, dot: int) -> bool:
    """Whether the dot at `dot`, followed by space and a capital, only shortens the word before it."""
    word = _LAST_WORD.search(text[max(start, dot - _LOOK_BACK) : dot]).group()  # type: ignore[union-attr]
    if dot - start == len(word) and (word.isdigit() or len(word) == 1):
        return True  # "1. Open the door": the number of a list
    if _BEFORE_NAMES.fullmatch(word):
        return True
    if _BEFORE_NUMBERS.fullmatch(word) and _next_visible(text, dot + 1).isdigit():
        return True
    if len(word) == 1:
        return word.isupper() and word != "I"  # J. Smith
    return _INITIALS.fullmatch(word) is not None and word.lower() not in _MAY_END


def _is_cjk(character: str) -> bool:
    """Whether it is a letter of a script that puts no space after a mark (a full-width digit is not)."""
    return character >= "\u2e80" and character.isalpha()


def _cut(sentence: str, space: str, max_chars: int) -> Iterator[Piece]:
    """Pieces of at most `max_chars` characters, cut at the last good place in the second half of each."""
    start = 0
    while len(sentence) - start > max_chars:
        end = _cutting_point(sentence, start, start + max_chars)
        piece, white = _piece(sentence[start:end])
        run = _WHITESPACE.match(sentence, end).end()  # type: ignore[union-attr]
        yield piece, white + sentence[end:run]
        start = run
    yield sentence[start:], space


def _cutting_point(sentence: str, start: int, limit: int) -> int:
    middle = (start + limit + 1) // 2
    ends = [match.end() for match in _CLAUSE_ENDS.finditer(sentence, middle, limit)]
    if ends:
        return ends[-1]
    for end in range(limit, middle, -1):
        if sentence[end - 1].isspace() or sentence[end].isspace():
            return end
    end = limit
    while end > middle and unicodedata.combining(sentence[end]):
        end -= 1  # an accent stays with its letter
    return end

"""Rule-based sentence splitter for Chinese and English.

A model trained on single sentences translates only the first sentence of a paragraph, so the translator splits long
texts. The concatenated parts are exactly the text. Uncertain boundaries are not split: two sentences in one part
harm less than half a sentence in two. One scan with bounded context takes time linear in the length of the text.
"""

import re

# A sentence without outer white space, and the white space after it.
Part = tuple[str, str]

_LINE_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
# Marks, closing characters and white space; or line breaks. Possessive quantifiers prevent backtracking.
_BOUNDARY = re.compile(
    r"(?P<marks>[。｡！？；．….!?]++)(?P<closers>[”’」』）】》〉］｝\"')\]}»]*+)(?P<space>\s*+)"
    f"|[{_LINE_BREAKS}]++\\s*+"
)
_BREAK = re.compile(f"[{_LINE_BREAKS}]")
# These always end a sentence.
_FULL = re.compile("[。｡！？；]")
# After one of these, without a space, the sentence continues.
_CONTINUES = re.compile("[，、,：:；;—–)）\\]】》〉-]")
# The mark belongs to a title or an aside: 《你好！》这本书, 他（真的！）来了
_ASIDE = re.compile("[》〉）)\\]】]")
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘《「]*\Z")
# U.S, e.g, a.m: the last dot is the mark in question.
_INITIALS = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")
# Split points of a long sentence, best first.
_CLAUSE_END, _SPACE = re.compile(r"[，、；：—]\s*+|[,;:]\s++"), re.compile(r"\s++")
# Characters of context: longer than any abbreviation.
_CONTEXT = 24

# Words whose dot never ends a sentence, even before a capital: a name follows.
_BEFORE_NAMES = re.compile(
    "mr|mrs|ms|mx|dr|prof|st|gen|col|lt|sgt|capt|cmdr|adm|maj|sen|rep|gov|pres|rev|hon|fr|messrs|mme|mlle|vs|cf|viz|ca|"
    "sr|sra|bzw|evtl|ggf",
    re.IGNORECASE,
)
# Words whose dot does not end a sentence when a number follows: No. 5, Fig. 3, Dec. 24.
_BEFORE_NUMBERS = re.compile(
    "no|nos|vol|vols|p|pp|ch|sec|art|eq|fig|figs|approx|est|jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec",
    re.IGNORECASE,
)


def split(text: str, max_chars: int | None = None) -> list[Part]:
    """Return the sentences of a text, each with the white space after it.

    Line breaks always end a sentence. Leading white space follows a first, empty sentence. With `max_chars`, longer
    sentences are split further: after a comma, else between words, else anywhere.
    """
    parts, start = [], len(text) - len(text.lstrip())
    if start:
        parts.append(("", text[:start]))
    for match in _BOUNDARY.finditer(text, start):
        if _ends_sentence(text, start, match):
            parts += _shorten(text[start : match.end()], max_chars)
            start = match.end()
    return parts + _shorten(text[start:], max_chars)


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether a match of _BOUNDARY ends the sentence that begins at `start`."""
    marks, closers, space = match.group("marks", "closers", "space")
    if not marks or _BREAK.search(space):
        return True
    after = text[match.end() : match.end() + 1]
    if not space and (_CONTINUES.match(after) or _ASIDE.search(closers)):
        return False
    if _FULL.search(marks):
        return True
    # 你好!我是… and 很好.他 end a sentence; 3.14, e.g., www.a.b, what?!x and 我…… hesitating do not.
    if not space:
        before = text[match.start() - 1 : match.start()]
        return len(marks) == 1 and marks != "…" and _is_cjk(before) and _is_cjk(after)
    in_lower_case = _next_visible(text, match.end()).islower()
    if "!" in marks or "?" in marks:
        # "Wait!" he said.
        return not in_lower_case or closers[-1:] not in "\"'”’"
    return not in_lower_case and (marks != "." or bool(closers) or not _is_abbreviation(text, start, match.start()))


def _next_visible(text: str, position: int) -> str:
    """Return the next character except white space, opening quotes and brackets."""
    return text[position : position + _CONTEXT].lstrip().lstrip("\"'“‘([{「『《")[:1]


def _is_abbreviation(text: str, start: int, dot: int) -> bool:
    """Whether the dot at `dot`, before a space and a capital, marks an abbreviation."""
    word = _LAST_WORD.findall(text[max(start, dot - _CONTEXT) : dot])[0]
    # The number of a list: "1. Open the window".
    if dot - start == len(word) and (word.isdigit() or len(word) == 1):
        return True
    if _BEFORE_NAMES.fullmatch(word):
        return True
    if _BEFORE_NUMBERS.fullmatch(word) and _next_visible(text, dot + 1).isdigit():
        return True
    # Initials: J. Smith, z. B.
    if len(word) == 1:
        return word.isascii() and word.isalpha() and word != "I"
    return _INITIALS.fullmatch(word) is not None and word.lower() not in ("a.m", "p.m")


def _is_cjk(character: str) -> bool:
    """Whether it is a letter of a script without spaces; full-width digits are not."""
    return character >= "\u2e80" and character.isalpha()


def _shorten(text: str, max_chars: int | None) -> list[Part]:
    """Split a sentence, with the white space after it, into parts of `max_chars`."""
    parts, sentence = [], text.rstrip()
    while max_chars and len(sentence) > max_chars:
        part = text[: _best_end(sentence, max_chars)].rstrip()
        rest = text[len(part) :].lstrip()
        parts.append((part, text[len(part) : len(text) - len(rest)]))
        text, sentence = rest, rest.rstrip()
    return [*parts, (sentence, text[len(sentence) :])] if text else parts


def _best_end(sentence: str, limit: int) -> int:
    """Return the last split point in the second half of the first `limit` characters."""
    for pattern, stop in ((_CLAUSE_END, limit), (_SPACE, limit + 1)):
        if matches := list(pattern.finditer(sentence, (limit + 1) // 2, stop)):
            return matches[-1].end()
    return limit

"""Languages, known by their codes: how each is written, what a text may be in, from which into which.

Codes are as users write them: zh, zh-Hant, cmn, en_GB. It knows scripts, and refuses to know a single word: German
and English look the same to it.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from dragoman.errors import UserError, suggest

_SHORT = {"zho": "zh", "chi": "zh", "cmn": "zh", "jpn": "ja", "kor": "ko", "eng": "en"}
CHINESE = frozenset(("zh", "yue", "lzh"))
UNSPACED = CHINESE | {"ja", "th", "lo", "km", "my", "bo"}
_CODE = re.compile(r"(?=.{1,35}$)[A-Za-z]+([-_][A-Za-z0-9]+)*")  # 35: the longest that BCP 47 reckons with
_SAMPLE = 10_000  # characters looked at to see in which script a text is


class Direction(NamedTuple):
    """From one language into another, by their codes; written zh_en."""

    src: str
    tgt: str

    def __str__(self) -> str:
        return f"{self.src}_{self.tgt}"


def directions(names: Sequence[str], src: str, tgt: str, *, key: str) -> list[Direction]:
    """What `names` ask for between two languages: src to tgt, and after it tgt to src where both are named.

    No names mean src to tgt. Names are compared and never taken apart, for a code may hold an underscore itself.
    Raises UserError, calling the names by `key`, for unknown ones, for one named twice, and for tgt to src alone; and
    for a code that is none: it stands in file names and on terminals, and may come from anywhere.
    """
    for side, code in (("src", src), ("tgt", tgt)):
        if not _CODE.fullmatch(code):
            raise UserError(
                f"{key.removesuffix('directions')}{side}: {code[:40]!a} is no code of a language; they are written "
                "like zh, zh-Hant or en_GB"
            )
    there, back = Direction(src, tgt), Direction(tgt, src)
    for name in names:
        named(name, (there, back), where=f"{key}: ")
    if len(set(names)) < len(names):
        twice = max(names, key=list(names).count)
        raise UserError(f"{key} names {twice} twice; both directions are [{there}, {back}]")
    if list(names) == [str(back)]:
        raise UserError(
            f"{key} is {back} alone: for that one direction swap src and tgt (src={tgt}, tgt={src}) and leave "
            f"directions empty, for both give [{there}, {back}]"
        )
    return [there, back] if len(names) == 2 else [there]


def named(name: str, choices: Sequence[Direction], *, where: str = "") -> Direction:
    """The direction called `name`. Raises UserError with the choices; `where` begins the message."""
    known = [str(choice) for choice in choices]
    if name not in known:
        near = suggest(str(name), known)
        raise UserError(
            f"{where}there is no direction {str(name)[:40]!r}{near}; choose from {', '.join(known)}"
        )
    return next(choice for choice in choices if str(choice) == name)


def chosen(choices: Sequence[Direction], text: str) -> Direction:
    """The direction whose source is in the script of `text`; the first one where none is.

    Raises UserError where there are letters and their script suits several, as it does German and English.
    """
    fitting = [choice for choice in choices if reads(choice.src, text)]
    if len(fitting) > 1 and any(map(str.isalpha, text[:_SAMPLE])):
        raise UserError(
            f"the script of the input does not tell {' from '.join(map(str, fitting))}: name one, e.g. "
            f"--direction {fitting[0]}"
        )
    return fitting[0] if fitting else choices[0]


@cache  # asked about every sentence of a corpus
def primary(code: str) -> str:
    """The language alone, by its shortest code: 'zh-Hant' and 'cmn' -> 'zh', 'en_GB' -> 'en'."""
    short = code.replace("_", "-").partition("-")[0].lower()
    return _SHORT.get(short, short)


def is_chinese(code: str) -> bool:
    """Whether it is written in Chinese characters alone."""
    return primary(code) in CHINESE


def is_unspaced(code: str) -> bool:
    """Whether it puts no spaces between words, nor between sentences."""
    return primary(code) in UNSPACED


def reads(language: str, text: str) -> bool:
    """Whether `text` is in a script that `language` is written in; text without letters suits every one."""
    counts = {"han": 0, "kana": 0, "hangul": 0, "other": 0}
    for character in text[:_SAMPLE]:
        if "\u3040" <= character <= "\u30ff":
            counts["kana"] += 4
        elif "\uac00" <= character <= "\ud7af":
            counts["hangul"] += 4
        elif (
            "\u3400" <= character <= "\u9fff"
            or "\uf900" <= character <= "\ufaff"
            or character >= "\U00020000"
        ):
            counts["han"] += 4  # a character says about as much as four letters
        elif character.isalpha():
            counts["other"] += 1
    if not any(counts.values()):
        return True
    asian = counts["han"] + counts["kana"] + counts["hangul"]
    if is_chinese(language):
        return counts["han"] >= counts["other"] and counts["kana"] <= counts["han"] // 8
    if primary(language) == "ja":
        return counts["han"] + counts["kana"] >= counts["other"]
    if primary(language) == "ko":
        return counts["hangul"] + counts["han"] >= counts["other"]
    return counts["other"] > asian

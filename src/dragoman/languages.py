"""Language codes: how a language is written, and directions between two of them.

Codes are as users write them: zh, zh-Hant, cmn, en_GB. Languages are told apart by their script alone.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from dragoman.errors import UserError, check_choice

_SHORT = {"zho": "zh", "chi": "zh", "cmn": "zh", "jpn": "ja", "kor": "ko", "eng": "en"}
CHINESE = frozenset(("zh", "yue", "lzh"))
UNSPACED = CHINESE | {"ja", "th", "lo", "km", "my", "bo"}
SAMPLE = 10_000  # characters of a text that are looked at to find its script
_CODE = re.compile(r"[A-Za-z]+([-_][A-Za-z0-9]+)*")
_HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_KANA = re.compile("[\u3040-\u30ff]")
_HANGUL = re.compile("[\uac00-\ud7af]")


class Direction(NamedTuple):
    """From one language into another; written zh_en."""

    src: str
    tgt: str

    def __str__(self) -> str:
        return f"{self.src}_{self.tgt}"


def directions(names: Sequence[str], src: str, tgt: str, *, key: str) -> list[Direction]:
    """Return src to tgt, and after it tgt to src where `names` holds both; no names mean src to tgt.

    Raises UserError, which calls the names `key`, for unknown names, for tgt to src alone, and for bad codes.
    """
    for code in (src, tgt):
        if not _CODE.fullmatch(code):
            raise UserError(f"{code[:40]!a} is not a language code; codes are like zh, zh-Hant or en_GB")
    forward, back = Direction(src, tgt), Direction(tgt, src)
    for name in names:
        check_choice(key, name, (str(forward), str(back)))
    if list(names) == [str(back)]:
        raise UserError(
            f"{key}=[{back}]: for this direction alone set src={tgt} and tgt={src}; both are [{forward}, {back}]"
        )
    return [forward, back] if len(set(names)) == 2 else [forward]


def named(name: str, choices: Sequence[Direction]) -> Direction:
    """Return the direction called `name`. Raises UserError with the choices."""
    known = {str(choice): choice for choice in choices}
    check_choice("direction", name, known)
    return known[name]


def by_script(choices: Sequence[Direction], text: str) -> Direction:
    """Return the direction whose source is in the script of `text`; the first one when none is.

    Raises UserError when several are: German and English look the same.
    """
    matches = [choice for choice in choices if reads(choice.src, text)]
    if len(matches) > 1 and any(map(str.isalpha, text[:SAMPLE])):
        raise UserError(
            f"the script of the input fits {' and '.join(map(str, matches))}: choose one with --direction {matches[0]}"
        )
    return matches[0] if matches else choices[0]


@cache
def primary(code: str) -> str:
    """Return the shortest code of the language alone: 'zh-Hant' and 'cmn' -> 'zh', 'en_GB' -> 'en'."""
    short = code.replace("_", "-").partition("-")[0].lower()
    return _SHORT.get(short, short)


def is_chinese(code: str) -> bool:
    """Whether the language is written in Chinese characters alone."""
    return primary(code) in CHINESE


def is_unspaced(code: str) -> bool:
    """Whether the language puts no spaces between words and sentences."""
    return primary(code) in UNSPACED


def reads(language: str, text: str) -> bool:
    """Whether `text` is in a script of `language`; a text without letters fits every language."""
    text = text[:SAMPLE]
    han, kana, hangul = (4 * len(script.findall(text)) for script in (_HAN, _KANA, _HANGUL))
    other = (
        sum(map(str.isalpha, text)) - (han + kana + hangul) // 4
    )  # a Chinese character weighs four letters
    if not (han or kana or hangul or other):
        return True
    if is_chinese(language):
        return han >= other and kana <= han // 8
    if primary(language) == "ja":
        return han + kana >= other
    if primary(language) == "ko":
        return hangul + han >= other
    return other > han + kana + hangul

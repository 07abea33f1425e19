"""Language codes, their scripts, and translation directions.

Codes are accepted as users write them: zh, zh-Hant, cmn, en_GB. The language of a text is recognised by its script
alone.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from dragoman.errors import UserError, check_choice

_NAMES = {
    "ar": "Arabic", "de": "German", "en": "English", "es": "Spanish", "fi": "Finnish", "fr": "French",
    "it": "Italian", "ja": "Japanese", "ko": "Korean", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese",
    "ru": "Russian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
# Names and other codes of languages (ISO 639-2 and 639-3, Argos Translate, countries) -> code used here.
_SHORT = {name.lower(): code for code, name in _NAMES.items()} | {
    "zho": "zh", "chi": "zh", "cmn": "zh", "zt": "zh", "cn": "zh", "jpn": "ja", "jp": "ja", "kor": "ko", "eng": "en",
    "deu": "de", "ger": "de", "fra": "fr", "fre": "fr", "spa": "es", "ita": "it", "por": "pt", "rus": "ru", "ara": "ar",
}  # fmt: skip
# The letters of these languages; the others of _NAMES have the Latin ones (and Greek) or a rule in `reads`.
_LATIN = "A-Za-zªµºÀ-ɏͰ-ϿḀ-ỿ\uff21-\uff3a\uff41-\uff5a"
_LETTERS = {"ar": "\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufefc", "ru": "\u0400-\u052f", "uk": "\u0400-\u052f"}
_TRADITIONAL = {"hant", "tw", "hk", "mo"}
HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff\u3007]")
_KANA = re.compile("[\u3040-\u30ff]")
_HANGUL = re.compile("[\uac00-\ud7af]")
WIDE = re.compile("[\u3007\u3040-\u30fa\u30fc-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+")


class Direction(NamedTuple):
    """A source and a target language; written zh_en."""

    src: str
    tgt: str

    def __str__(self) -> str:
        return f"{self.src}_{self.tgt}"


def directions(names: Sequence[str], src: str, tgt: str, *, key: str) -> list[Direction]:
    """Return src to tgt, followed by tgt to src if `names` holds both.

    Without names, return src to tgt alone. Raises UserError with `key` for an unknown name, and for tgt to src alone.
    """
    forward, back = Direction(src, tgt), Direction(tgt, src)
    for name in names:
        check_choice(key, name, (str(forward), str(back)))
    if list(names) == [str(back)]:
        raise UserError(f"{key}=[{back}]: reverses src and tgt. Exchange the languages, or name both directions")
    return [forward, back] if len(set(names)) == 2 else [forward]


def by_script(choices: Sequence[Direction], text: str) -> Direction:
    """Return the direction whose source language has the script of `text`.

    If none has it, return the first. Raises UserError if several have it, e.g. German and English.
    """
    matches = [choice for choice in choices if reads(choice.src, text)]
    if len(matches) > 1 and any(map(str.isalpha, text)):
        names = " and ".join(map(str, matches))
        raise UserError(f"input: its script fits {names}. Choose one, e.g. --direction {matches[0]}")
    return matches[0] if matches else choices[0]


def length(text: str) -> int:
    """Return the number of characters; a Chinese, Japanese or Korean one counts as 3."""
    return len(text) + 2 * len("".join(WIDE.findall(text)))


def primary(code: str) -> str:
    """Return the short code of a language: zh-Hant, cmn and zt -> zh, en_GB -> en."""
    short = code.replace("_", "-").partition("-")[0].lower()
    return _SHORT.get(short, short)


def is_traditional(code: str) -> bool:
    """Whether the code stands for Chinese in traditional characters."""
    parts = {*code.lower().replace("_", "-").split("-")}
    return "zt" in parts or (primary(code) == "zh" and "hans" not in parts and not parts.isdisjoint(_TRADITIONAL))


def variant(code: str) -> str:
    """Return a code as it is compared: ZH-TW and zh_Hant are equal."""
    return "zh-hant" if is_traditional(code) else code.lower().replace("_", "-")


def english_name(code: str) -> str:
    """Return the English name of a language; an unlisted code is its own name."""
    return _NAMES.get(primary(code), code) + (" (traditional)" if is_traditional(code) else "")


def is_chinese(code: str) -> bool:
    """Whether the language is written in Chinese characters alone."""
    return primary(code) in ("zh", "yue", "lzh")


def is_unspaced(code: str) -> bool:
    """Whether the language is written without spaces."""
    return is_chinese(code) or primary(code) in ("ja", "th", "lo", "km", "my", "bo")


def reads(language: str, text: str) -> bool:
    """Whether `text` is in a script of `language`, or has no letters.

    An alphabet needs a third of the letters. A language without a rule has no Chinese characters, kana or hangul.
    """
    # One of these characters stands for about four letters of an alphabet, so it counts as four.
    han, kana, hangul = (4 * len(script.findall(text)) for script in (HAN, _KANA, _HANGUL))
    other = sum(map(str.isalpha, text)) - (han + kana + hangul) // 4
    if not (han or kana or hangul or other):
        return True
    language = primary(language)
    if is_chinese(language):
        return han >= other + hangul and kana <= han // 8
    if language == "ja":
        return han + kana >= other
    if language == "ko":
        return hangul + han >= other
    own = len(re.findall(f"[{_LETTERS.get(language, _LATIN)}]", text)) if language in _NAMES else other
    return 3 * own >= other > han + kana + hangul

"""Language codes of LibreTranslate's clients, names, and detection by script.

Clients write Chinese as zh, zh-Hans, zh_hans, zh-CN, zt, cmn and so on. A code matches a model's language if both have
the same primary code; the script is only compared for a warning.
"""

from collections.abc import Sequence

from dragoman.languages import primary, reads
from dragoman.serve.wire import Detected

_LISTED = (
    "ar Arabic, de German, en English, es Spanish, fi Finnish, fr French, it Italian, ja Japanese, ko Korean, "
    "nl Dutch, pl Polish, pt Portuguese, ru Russian, sv Swedish, tr Turkish, uk Ukrainian, vi Vietnamese, zh Chinese"
)
_NAMES = dict(pair.split() for pair in _LISTED.split(", "))
_TRADITIONAL = {"zt", "zh-hant", "zh-tw", "zh-hk", "zh-mo"}
_SAMPLE = 500  # characters that decide the language


def short(code: str) -> str:
    """Return the code that names a language here: zh-CN, cmn, zt -> zh."""
    return "zh" if code.lower() == "zt" else primary(code)


def is_traditional(code: str) -> bool:
    """Whether the code stands for Chinese in traditional characters."""
    return code.lower().replace("_", "-") in _TRADITIONAL


def spellings(language: str) -> list[str]:
    """Return the codes listed for a language; older clients read the second."""
    if primary(language) != "zh":
        return [primary(language)]
    return ["zh-Hant", "zt"] if is_traditional(language) else ["zh-Hans", "zh"]


def name(code: str) -> str:
    """Return the English name of a language; an unlisted code is its own name."""
    return _NAMES.get(short(code), code) + (" (traditional)" if is_traditional(code) else "")


def detect(text: str, languages: Sequence[str]) -> list[Detected]:
    """Return the languages of a text by its script, best first.

    The confidence, 0 to 100, is the share of letters in the language's script, divided among the languages of this
    script.
    """
    letters = [letter for letter in text[:_SAMPLE] if letter.isalpha()]
    fits = [[language for language in languages if reads(language, letter)] for letter in letters]
    shares = {language: sum(1 / len(fit) for fit in fits if language in fit) for language in languages}
    best = sorted((code for code in shares if shares[code]), key=lambda code: -shares[code])
    results = [Detected(confidence=round(100 * shares[c] / len(letters), 1), language=spellings(c)[0]) for c in best]
    return results or [Detected(confidence=0, language="en")]

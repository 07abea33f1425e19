"""Language codes in answers to LibreTranslate's clients, and detection by script.

Clients write Chinese as zh, zh-Hans, zh_hans, zh-CN, zt, cmn and so on. A code matches a model's language if both have
the same primary code (languages.primary). The script is compared for a warning alone.
"""

from collections.abc import Sequence

from dragoman.languages import is_traditional, primary, reads
from dragoman.serve.wire import Detected

_SAMPLE = 500  # characters that decide the language


def spellings(language: str) -> list[str]:
    """Return the codes listed for a language; older clients read the second."""
    if primary(language) != "zh":
        return [primary(language)]
    return ["zh-Hant", "zt"] if is_traditional(language) else ["zh-Hans", "zh"]


def detect(text: str, languages: Sequence[str]) -> list[Detected]:
    """Return the languages of a text by its script, best first.

    The confidence, 0 to 100, is the share of letters in the script of the language. Languages of one script divide it.
    """
    letters = [letter for letter in text[:_SAMPLE] if letter.isalpha()]
    matches = [[language for language in languages if reads(language, letter)] for letter in letters]
    shares = {language: sum(1 / len(each) for each in matches if language in each) for language in languages}
    best = sorted((code for code in shares if shares[code]), key=lambda code: -shares[code])
    results = [Detected(confidence=round(100 * shares[c] / len(letters), 1), language=spellings(c)[0]) for c in best]
    return results or [Detected(confidence=0, language="en")]

"""What a language's code says about its writing. Codes are as users write them: zh, zh-Hant, cmn, en_GB."""

_SHORT = {"zho": "zh", "chi": "zh", "cmn": "zh", "jpn": "ja", "kor": "ko", "eng": "en"}
CHINESE = frozenset(("zh", "yue", "lzh"))
UNSPACED = CHINESE | {"ja", "th", "lo", "km", "my", "bo"}


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

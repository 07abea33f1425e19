"""Directions by their names, and by the script of a text."""

import pytest

from dragoman.errors import UserError
from dragoman.languages import Direction, chosen, directions, reads

THERE, BACK = Direction("zh", "en"), Direction("en", "zh")


def test_directions_are_src_to_tgt_and_the_other_one_only_when_both_are_named() -> None:
    assert directions([], "zh", "en", key="k") == directions(["zh_en"], "zh", "en", key="k") == [THERE]
    for names in (["zh_en", "en_zh"], ["en_zh", "zh_en"]):
        assert directions(names, "zh", "en", key="k") == [THERE, BACK]


def test_codes_may_hold_underscores() -> None:
    names = ["en_GB_zh_Hant", "zh_Hant_en_GB"]
    assert list(map(str, directions(names, "en_GB", "zh_Hant", key="k"))) == names


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["zh_fr"], "'zh_fr'.*choose from zh_en, en_zh"),
        (["zh-en"], "did you mean 'zh_en'"),
        (["zh_en", "en_zh", "zh_zh"], "'zh_zh'"),
        (["zh_en", "zh_en"], "zh_en twice"),
        (["zh_en", "en_zh", "en_zh"], "en_zh twice"),
        (["en_zh"], "en_zh alone.*src=en, tgt=zh.*both"),
        ([["zh_en"]], "no direction"),
        ([None], "no direction 'None'"),
        (["a\nb" * 1000], "no direction"),
    ],
)
def test_directions_that_cannot_be_are_refused_in_one_line_naming_the_key(names: list, told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        directions(names, "zh", "en", key="data.directions")
    message = str(caught.value)
    assert message.startswith("data.directions")
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize(
    "code",
    ["", "\x1b[31mzh\n", "zh\n", "zh ", "../../etc", "中文", "\ud800", "-zh", "zh--Hant", "z" * 36, "2en"],
)
def test_what_is_no_code_is_refused_and_shown_without_its_controls(code: str) -> None:
    for languages, key in (((code, "en"), "data.src"), (("en", code), "data.tgt")):
        with pytest.raises(UserError, match=f"{key}: .* is no code") as caught:
            directions([], *languages, key="data.directions")
        assert str(caught.value).isprintable()
        assert str(caught.value).isascii()


def test_a_mistake_is_shown_without_the_controls_of_what_it_quotes() -> None:
    assert str(UserError("a\x1b[2J\x9b\udc80\u202eb\n你　好")) == "a\\x1b[2J\\x9b\\udc80\\u202eb 你　好"


@pytest.mark.parametrize(
    ("text", "direction"),
    [
        ("好久不见", THERE),
        ("Long time no see", BACK),
        ("我在用 Python 写代码", THERE),
        ("", THERE),
        ("1984 !?", THERE),
        ("はじめまして、今日は", THERE),  # neither: the first
    ],
)
def test_the_script_chooses_the_direction(text: str, direction: Direction) -> None:
    assert chosen([THERE, BACK], text) == direction


def test_a_script_that_does_not_tell_is_refused_and_one_direction_never() -> None:
    german = [Direction("de", "en"), Direction("en", "de")]
    with pytest.raises(UserError, match=r"de_en from en_de.*--direction de_en"):
        chosen(german, "Guten Tag")
    assert chosen(german, "12") == chosen(german[:1], "Guten Tag") == chosen(german[:1], "你好") == german[0]


@pytest.mark.parametrize(
    ("language", "text", "fits"),
    [
        ("zh", "好久不见", True),
        ("zh", "long time no see", False),
        ("zh", "我在用 Python 写 TensorFlow 代码", True),
        ("zh", "はじめまして、今日は", False),
        ("ja", "はじめまして、今日は", True),
        ("ko", "안녕하세요", True),
        ("en", "long time no see", True),
        ("en", "好久不见", False),
        ("en", "He said 你好 to me and left again", True),
        ("de_DE", "Grüße", True),
        ("zh-Hant", "好久不見", True),
        ("zh", "", True),
        ("en", "😀 123 !?", True),
    ],
)
def test_the_script_tells_which_languages_a_text_can_be(language: str, text: str, fits: bool) -> None:
    assert reads(language, text) is fits

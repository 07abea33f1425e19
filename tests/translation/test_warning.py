"""Warnings: each rule on faulty translations, and on good ones."""

import string

import pytest

from dragoman.config import TokenizerConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.languages import Direction
from dragoman.translation.lines import warnings

INTO_EN = Direction("zh", "en")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A vocabulary with every Latin letter and a few Chinese ones."""
    corpus = [*string.ascii_letters, "好久不见哈我很你。，"] * 20
    path = tmp_path_factory.mktemp("vocabulary") / "joint.model"
    return Tokenizer.train(corpus, TokenizerConfig(kind="char", vocab_size=400), path, ["zh", "en"])


SENTENCES: list[tuple[str, str, str | None]] = [
    ("好久不见", "Long time no see", None),
    ("哈哈哈哈！", "Ha ha ha ha!", None),
    ("不，不，不，不！", "No, no, no, no!", None),
    ("我很好。", "Fine, fine, fine, fine.", "repetition"),
    ("2024", "2024", None),
    ("……", "……", None),
    ("好久不见", "I saw the I saw the I saw the I saw the", "repetition: 'I saw the'"),
    ("好久不见", "很好看", "not written in the script of 'en'"),
    ("我很好。", "I am很 well.", "not written in the script of 'en'"),
    ("Tom", "Tom", None),
    ("I have not seen you.", "I have been you.", "source not written in the script of 'zh'"),
    ("你好。", "Hello, my dear friend, I have not seen you for such a very long time. " * 2, "unusual"),
    ("龘好", "Good.", "characters outside the vocabulary: 龘"),
    ("13812345678。", "It is 13814788.", "changed number: 13812345678"),
    ("好1234500000。", "It is 1.2345 billion.", None),
    ("13812345678，1000000", "It is 138 1234 5678, a million.", None),
]


def test_a_warning_names_the_rule(tokenizer: Tokenizer) -> None:
    for source, translation, message in SENTENCES:
        found = list(warnings(source, translation, INTO_EN, tokenizer))
        assert found == [] if message is None else message in " ".join(found), (source, translation)


def test_a_copied_sentence_is_found_and_a_name_is_not(tokenizer: Tokenizer) -> None:
    direction, sentence = Direction("de", "en"), "Wir haben uns lange nicht gesehen."
    name = "Johann Wolfgang Goethe"
    assert list(warnings(sentence, sentence, direction, tokenizer)) == ["copy of the source"]
    assert list(warnings(name, name, direction, tokenizer)) == []


def test_chinese_words_are_counted_without_spaces(tokenizer: Tokenizer) -> None:
    direction, sentence = Direction("en", "zh"), "好久不见，很好很好。"
    found = "copy of the source", "source not written in the script of 'en'"
    assert tuple(warnings(sentence, sentence, direction, tokenizer)) == found
    assert list(warnings("好久", "好久", direction, tokenizer)) == []  # a name

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data.sentences import split

TRICKY = st.text(
    st.sampled_from(list("。！？；….!?”’」）》\"') \n\u3000，,、ab AZ12你好我\u2028\r：“《（—é\u0301😀")),
    max_size=80,
)


def sentences(text: str) -> list[str]:
    return [sentence for sentence, _ in split(text) if sentence]


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=200), TRICKY), st.one_of(st.none(), st.integers(1, 20)))
def test_the_pieces_joined_are_the_text_and_respect_the_limit(text: str, limit: int | None) -> None:
    pieces = split(text, limit)
    assert "".join(sentence + space for sentence, space in pieces) == text
    for k, (sentence, space) in enumerate(pieces):
        assert sentence == sentence.strip()
        assert not space or space.isspace()
        assert sentence or k == 0
        assert limit is None or len(sentence) <= limit


@pytest.mark.parametrize(
    "expected",
    [
        ["好久不见。", "你最近怎么样？", "我很好！"],
        ["他说：“我不去。”", "然后他走了。"],
        ["「真的吗？」", "她问。"],
        ["你来不来？！", "快说。。。", "我等你。"],
        ["我买了苹果；", "他买了梨。"],
        ["你好!", "我叫小明.", "你呢?"],
        ["他……没有来。", "我…我不知道。"],
        ["我读过《你好！》这本书。", "很好看。"],
        ["他（真的！）来了。", "我很高兴。"],
        ["“好！”，他说。", "大家笑了。"],
        ["圆周率是3.14。", "版本是２．５。"],
        ["我住在U.S.的一个小镇。", "你呢？"],
        ["他说：“我走了。”", "“别走！”", "她哭了。"],
    ],
)
def test_chinese_sentences_end_where_a_reader_ends_them(expected: list[str]) -> None:
    assert sentences("".join(expected)) == expected


@pytest.mark.parametrize(
    "expected",
    [
        ["Long time no see.", "How are you?", "I'm fine!"],
        ["Mr. Smith met Dr. Jones.", "They talked.", "He said no.", "It was No. 5."],
        ["Bring fruit, e.g. Apples or pears.", "Thanks."],
        ["She moved to the U.S. Army base.", "It was far."],
        ["We left at 5 p.m.", "Nobody saw us."],
        ["Pi is about 3.14 or so.", "Version 2.0.1 is out."],
        ["J. R. R. Tolkien wrote it.", "I read it."],
        ["It was I.", "Nobody else."],
        ['He said, "I am leaving."', "Then he left."],
        ['"Where are you?" she asked.', "Nobody answered."],
        ["Well... maybe later.", "Or never..."],
        ["I waited...", "Nobody came."],
        ["Yahoo! is a company.", "See www.example.com/?a=b for more."],
        ["(It rained.)", "We stayed in."],
        ["It happened in 1999.", "Then came 2000."],
        ["1. Open the door.", "2. Close it."],
        ["What?!", "No way!"],
        ["I can't believe it.", "It's true."],
    ],
)
def test_english_sentences_end_where_a_reader_ends_them(expected: list[str]) -> None:
    assert sentences(" ".join(expected)) == expected


@pytest.mark.parametrize("text", ["", " ", "\n\n", "你好", "no mark at the end", "...", "。", "😀😀", "Mr."])
def test_a_text_without_an_inner_end_is_one_piece(text: str) -> None:
    assert len(split(text)) == (1 if text else 0)


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\n\n", "\u2028", "\x0b", " \n\t"])
def test_line_breaks_end_a_sentence_and_never_stay_inside(line_break: str) -> None:
    assert split(f"Title{line_break}the text") == [("Title", line_break), ("the text", "")]


def test_whitespace_stays_with_the_sentence_before_it() -> None:
    assert split("  你好。　再见。\n") == [("", "  "), ("你好。", "　"), ("再见。", "\n")]


def test_a_sentence_too_long_is_cut_after_commas_then_between_words_then_anywhere() -> None:
    assert split("aaaa, bbbb, cccc dddd", 12) == [("aaaa, bbbb,", " "), ("cccc dddd", "")]
    assert split("aaaa bbbb cccc", 10) == [("aaaa bbbb", " "), ("cccc", "")]
    assert split("一二三四五六七", 3) == [("一二三", ""), ("四五六", ""), ("七", "")]
    assert split("abcde\u0301f", 5) == [("abcd", ""), ("e\u0301f", "")]
    assert split("短。也短。", 100) == split("短。也短。")


def test_a_limit_below_one_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        split("a", 0)


@pytest.mark.parametrize(
    "unit",
    ["你好。", ".", "…", ". ", "A. ", " ", "a", "”", "。”", "，", "a b", "\u0301", "!?", "(", "\n"],
)
def test_a_million_characters_take_linear_time(unit: str) -> None:
    text = (unit * 1_000_000)[:1_000_000]
    begin = time.process_time()
    pieces = split(text, 200)
    assert time.process_time() - begin < 30  # about one second; a quadratic scan would take hours
    assert "".join(sentence + space for sentence, space in pieces) == text

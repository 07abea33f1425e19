"""Sentence splitting."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data.text import split_sentences as split

TRICKY = st.text(
    st.sampled_from(list("。！？；….!?”’」）》\"') \n\u3000，,、ab AZ12你好我\u2028\r：“《（—é\u0301😀")), max_size=80
)


def sentences(text: str) -> list[str]:
    return [sentence for sentence, _ in split(text) if sentence]


@settings(max_examples=40, deadline=None)
@given(st.one_of(st.text(max_size=100), TRICKY), st.one_of(st.none(), st.integers(1, 20)))
def test_the_parts_joined_are_the_text(text: str, limit: int | None) -> None:
    parts = split(text, limit)
    assert "".join(sentence + space for sentence, space in parts) == text
    for k, (sentence, space) in enumerate(parts):
        assert sentence == sentence.strip()
        assert not space or space.isspace()
        assert sentence or k == 0
        assert limit is None or len(sentence) <= limit


def test_chinese_sentences_end_at_their_marks() -> None:
    texts = [
        ["好久不见。", "你最近怎么样？", "我很好！"],
        ["他说：“我不去。”", "然后他走了。"],
        ["「真的吗？」", "她问。"],
        ["你来不来？！", "快说。。。", "我等你。"],
        ["你好!", "我叫小明.", "你呢?"],
        ["他……没有来。", "我…我不知道。"],
        ["我读过《你好！》这本书。", "很好看。"],
        ["他（真的！）来了。", "我很高兴。"],
        ["“好！”，他说。", "大家笑了。"],
        ["圆周率是3.14。", "版本是２．５。"],
    ]
    assert [sentences("".join(expected)) for expected in texts] == texts


def test_english_sentences_end_at_their_marks() -> None:
    texts = [
        ["Long time no see.", "How are you?", "I'm fine!"],
        ["Mr. Smith met Dr. Jones.", "They talked.", "He said no.", "It was No. 5."],
        ["Viele Tiere, z. B. Hunde, bzw. Katzen.", "El Sr. López."],
        ["Bring fruit, e.g. Apples or pears.", "Thanks."],
        ["She moved to the U.S. Army base.", "It was far."],
        ["We left at 5 p.m.", "Nobody saw us."],
        ["Pi is about 3.14 or so.", "Version 2.0.1 is out."],
        ["J. R. R. Tolkien wrote it.", "I read it."],
        ["It was I.", "Nobody else."],
        ['"Where are you?" she asked.', "Nobody answered."],
        ["Well... maybe later.", "Or never..."],
        ["Yahoo! is a company.", "See www.example.com/?a=b for more."],
        ["1. Open the door.", "2. Close it."],
        ["What?!", "No way!"],
    ]
    assert [sentences(" ".join(expected)) for expected in texts] == texts


def test_a_text_without_an_inner_end_is_one_part() -> None:
    texts = [" ", "\n\n", "你好", "no mark at the end", "...", "😀😀", "Mr."]
    assert [len(split(text)) for text in texts] == [1] * len(texts)
    assert split("") == []


def test_line_breaks_end_a_sentence() -> None:
    for line_break in ["\n", "\r\n", "\n\n", "\u2028", " \n\t"]:
        assert split(f"Title{line_break}the text") == [("Title", line_break), ("the text", "")]


def test_white_space_follows_the_sentence_before_it() -> None:
    assert split("  你好。　再见。\n") == [("", "  "), ("你好。", "　"), ("再见。", "\n")]


def test_a_long_sentence_is_split_at_the_best_place() -> None:
    assert split("aaaa, bbbb, cccc dddd", 12) == [("aaaa, bbbb,", " "), ("cccc dddd", "")]
    assert split("aaaa bbbb cccc", 10) == [("aaaa bbbb", " "), ("cccc", "")]
    assert split("一二三四五六七", 3) == [("一二三", ""), ("四五六", ""), ("七", "")]


def test_the_time_is_linear_in_the_length() -> None:
    begin = time.process_time()
    for unit in ["你好。", "A. ", "\u0301"]:
        split((unit * 100_000)[:100_000], 200)
    # A quadratic scan would take minutes.
    assert time.process_time() - begin < 5

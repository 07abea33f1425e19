"""Any text: as many lines out as in, in order, without a new line break in one.

Between the random strings stand marks that a translator copies: where each comes out again the order was kept.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.config import SearchConfig
from dragoman.translation.translator import Translator

SEARCHES = [
    SearchConfig(kind="greedy", max_length_a=0.5, max_length_b=3),
    SearchConfig(beam_size=2, n_best=2, max_length_a=0.5, max_length_b=3),
    SearchConfig(kind="sample", max_length_a=0.5, max_length_b=3),
]
SPECIAL = [
    *("<s>", "</s>", "<unk>", "<2en>", "<0x0A>", "▁", "\\n", "%s", "${x}", "--", "\ud800", "\udcff", "\u0378"),
    *("好", "a", "1", "。", "𠮷", "👩\u200d🚀", "نص", "हिन्दी", "각", "é", "\u202e", "\u0301", "\u3000", "\ufeff"),
    *("\0", "\n", "\r", "\r\n", "\t", "\x0b", "\x1b[2J", "\x85", "\u2028"),
]  # fmt: skip
CHARACTERS = st.text(st.characters(exclude_categories=()), max_size=30)  # surrogates and the unassigned too
TEXTS = st.one_of(
    CHARACTERS,
    st.lists(CHARACTERS | st.sampled_from(SPECIAL), max_size=8).map("".join),
    st.builds(str.__mul__, st.sampled_from(SPECIAL), st.integers(13, 200)),
)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(TEXTS, max_size=8), st.sampled_from(SEARCHES))
def test_n_lines_in_n_lines_out_in_order(translator: Translator, lines: list[str], search: SearchConfig) -> None:
    marks = ["".join("★☆◆"[n // 3**power % 3] for power in range(3)) for n in range(len(lines) + 1)]
    mixed = [text for pair in zip(marks, lines, strict=False) for text in pair] + marks[-1:]
    results = translator.translate(mixed, search, direction="zh_en")
    assert len(results) == len(mixed)
    assert [result.text for result in results[::2]] == marks
    for line, result in zip(mixed, results, strict=True):
        assert result.text == result.hypotheses[0].text
        for hypothesis in result.hypotheses:
            hypothesis.text.encode()  # no lone surrogates
            assert "\n" in line or "\n" not in hypothesis.text

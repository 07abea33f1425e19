"""Invariance of a translation to the batch, the order, padding and other lines.

Sums in another order round differently. So one translation of each search may differ, if its scores are within 1e-4.
A sampled translation also depends on the line's place in the input, which seeds its random numbers.
"""

import random
from collections.abc import Sequence

import pytest

from dragoman.config import SearchConfig
from dragoman.translation import translator as translator_module
from dragoman.translation.translator import Translation, Translator

NEAR_TIE = 1e-4
PHRASES = ["好久不见。", "大家好！", "最近忙什么呢？", "老样子。", "我爱你，你爱我。", "今天天气很好，我们去公园吧！"]
LINES = [*PHRASES, "", "".join(PHRASES[:3]), "……", "好" * 15, PHRASES[0]]
SEARCHES = {
    "greedy": SearchConfig(kind="greedy", max_length_a=0.5, max_length_b=8),
    "beam": SearchConfig(beam_size=4, n_best=2, max_length_a=0.5, max_length_b=8),
    "no length penalty": SearchConfig(beam_size=3, length_penalty=0.0, max_length_a=0.5, max_length_b=8),
    "sample": SearchConfig(kind="sample", temperature=0.8, seed=5, max_length_a=0.5, max_length_b=8),
}


def differences(ones: Sequence[Translation], others: Sequence[Translation]) -> int:
    """Count the translations that differ; fail if scores differ by more than NEAR_TIE."""
    count = 0
    for one, other in zip(ones, others, strict=True):
        a, b = one.hypotheses[0], other.hypotheses[0]
        assert abs(a.score - b.score) <= NEAR_TIE * max(1, abs(a.score)), (one.text, other.text)
        count += a.tokens != b.tokens
    return count


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_translation_depends_on_its_line_alone(
    kind: str, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = SEARCHES[kind]

    def translate(lines: Sequence[str], batch_tokens: int = 4096) -> list[Translation]:
        return translator.translate(lines, search, batch_tokens=batch_tokens, direction="zh_en")

    together = translate(LINES)
    other_ways = [
        translate(LINES, batch_tokens=1),
        translate(LINES, batch_tokens=150),
        translate([*LINES, "今天天气很好我们去公园吧" * 4])[: len(LINES)],
    ]
    monkeypatch.setattr(translator_module, "WINDOW", 5)
    other_ways.append(translate(LINES))
    if kind != "sample":
        order = random.Random(1).sample(range(len(LINES)), len(LINES))
        shuffled = dict(zip(order, translate([LINES[i] for i in order]), strict=True))
        other_ways.append([shuffled[i] for i in range(len(LINES))])
        other_ways.append([translate([line])[0] for line in LINES])
    assert sum(differences(together, others) for others in other_ways) <= 1

"""A translation depends on its line and on nothing else: not on the batch, the order, the padding or the company.

Sums of other shapes round otherwise, so two ways of computing may part where two words are equally likely: such a
difference is allowed where the scores lie within 1e-5 of each other, and counted. Sampling draws for each sentence
from a stream of its own, numbered by its place in the input.

On the golden model, and on a real one: DRAGOMAN_MODEL=FOLDER DRAGOMAN_LINES=FILE python -m pytest -s -m slow
tests/test_invariance.py (a bundle, and a text file of which the first column of the first 1,000 lines is translated).
"""

import io
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from dragoman.doors import read_lines
from dragoman.search.search import SearchConfig
from dragoman.translator import Translation, Translator

HERE = Path(__file__).parent
PHRASES = HERE.parent / "data" / "phrasebook" / "handwritten" / "people.tsv"
TIE = 1e-5
SEARCHES = {
    "greedy": SearchConfig(kind="greedy"),
    "beam": SearchConfig(beam_size=4, n_best=2),
    "no length penalty": SearchConfig(beam_size=3, length_penalty=0.0),
    "sample": SearchConfig(kind="sample", temperature=0.8, seed=5),
}


@pytest.fixture(scope="module")
def golden() -> Translator:
    return Translator.load(HERE / "golden" / "bundle", "cpu")


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """Some that the model has learnt, some that it has not, of one to many sentences, and some with none."""
    phrases = [line.split("\t")[0] for line in PHRASES.read_text(encoding="utf-8").splitlines()[:400:13]]
    return [*phrases, "", "".join(phrases[:6]), "……", phrases[3] * 3, "好" * 90, phrases[0]]


def parted(ones: Sequence[Translation], others: Sequence[Translation]) -> int:
    """How many translations differ. Where they do, their scores must be a tie."""
    count = 0
    for one, other in zip(ones, others, strict=True):
        a, b = one.hypotheses[0], other.hypotheses[0]
        if (a.tokens, a.text) == (b.tokens, b.text):
            assert a.score == pytest.approx(b.score, abs=1e-4)
            continue
        count += 1
        assert abs(a.score - b.score) <= TIE, (one.text, other.text)
    return count


def every_way(translator: Translator, lines: list[str], search: SearchConfig) -> dict[str, int]:
    """Way of computing -> translations that came out differently."""

    def translate(texts: Sequence[str], batch_tokens: int = 4096) -> list[Translation]:
        return translator.translate(texts, search, batch_tokens=batch_tokens, direction="zh_en")

    together = translate(lines)
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    workers = translate(lines, 1000)  # several batches, for several threads
    torch.set_num_threads(threads)
    company = "今天天气很好我们去公园吧" * 9
    found = {
        "another number of threads": parted(together, workers),
        "one sentence a batch": parted(together, translate(lines, 1)),
        "small batches": parted(together, translate(lines, 150)),
        "long company": parted(together, translate([*lines, company])[: len(lines)]),
        "in two halves, the first of them": parted(
            together[: len(lines) // 2], translate(lines[: len(lines) // 2])
        ),
    }
    if search.kind != "sample":  # the place in the input is what a draw depends on
        alone = [translate([line])[0] for line in lines]
        order = random.Random(1).sample(range(len(lines)), len(lines))
        shuffled = dict(zip(order, translate([lines[i] for i in order]), strict=True))
        found |= {
            "each line alone": parted(together, alone),
            "another order": parted(together, [shuffled[i] for i in range(len(lines))]),
            "each line thrice": parted(
                [t for t in together for _ in range(3)], translate([line for line in lines for _ in range(3)])
            ),
        }
    return found


@pytest.mark.parametrize("search", SEARCHES)
def test_a_translation_depends_on_nothing_but_its_line(
    golden: Translator, lines: list[str], search: str
) -> None:
    found = every_way(golden, lines, SEARCHES[search])
    print(f"\n{search}: {len(lines)} lines, differences at ties: {found}")
    assert sum(found.values()) <= 1  # ties are rare


def test_windows_change_no_translation(
    golden: Translator, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for search in SEARCHES.values():
        together = golden.translate(lines, search, direction="zh_en")
        with monkeypatch.context() as patch:
            patch.setattr("dragoman.translator._WINDOW_LINES", 5)
            assert parted(together, golden.translate(lines, search, direction="zh_en")) == 0


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_endings_are_no_part_of_a_line(end: str) -> None:
    lines = ["好久不见", "", "我\r爱你", " ", "a\u2028b", "你打我"]
    written = end.join(lines).encode()
    assert list(read_lines(io.BytesIO(written))) == lines
    assert list(read_lines(io.BytesIO(written + end.encode()))) == lines


@pytest.mark.slow
@pytest.mark.skipif("DRAGOMAN_MODEL" not in os.environ, reason="DRAGOMAN_MODEL and DRAGOMAN_LINES name none")
@pytest.mark.parametrize("search", ["greedy", "beam", "sample"])
def test_a_real_model_translates_each_line_for_itself(search: str) -> None:
    translator = Translator.load(os.environ["DRAGOMAN_MODEL"], "cpu", engine="torch")
    text = Path(os.environ["DRAGOMAN_LINES"]).read_text(encoding="utf-8")
    real = [line.split("\t")[0] for line in text.split("\n") if line][:1000]
    found = every_way(translator, real, SEARCHES[search])
    print(f"\n{search}: {len(real)} lines, differences at ties: {found}")
    assert sum(found.values()) <= len(real) // 20

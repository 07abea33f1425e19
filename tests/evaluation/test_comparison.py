"""Comparison of systems: the verdicts, and the refusal of different test sets."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.data.text import Pair
from dragoman.errors import UserError
from dragoman.evaluation import scores
from dragoman.evaluation.scores import Outputs, compare, of_evaluation

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import compare as script

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
REFERENCES = [[" ".join(WORDS[(i + k) % 12] for k in range(4 + i % 5)) + "."] for i in range(60)]
SOURCES = [f"第{i}句。" + "很" * (i % 7) for i in range(60)]
RIGHT = [references[0] for references in REFERENCES]
WRONG = [text.replace("two", "too").replace("five", "fife") for text in RIGHT]


def outputs(name: str, hypotheses: list[str]) -> Outputs:
    pairs = [Pair(src, tgt, (tgt,)) for src, (tgt,) in zip(SOURCES, REFERENCES, strict=True)]
    return Outputs(name, "en", pairs, hypotheses)


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "N_SAMPLES", {"bs": 100, "ar": 100})


def test_the_better_system_is_named() -> None:
    result = compare([outputs("a", WRONG), outputs("b", RIGHT)])
    assert result["scores"]["2 b"]["bleu"]["score"] == pytest.approx(100)
    assert result["verdicts"]["2 b"][0].startswith("2 b is better than 1 a at p < 0.05: BLEU +")
    assert result["won"]["2 b"]["lost"] == []
    source, reference, first, other = result["won"]["2 b"]["won"][0]
    assert (source in SOURCES, other) == (True, reference)
    assert first != reference
    reverse = compare([outputs("b", RIGHT), outputs("a", WRONG)])
    assert reverse["verdicts"]["2 a"][0].startswith("2 a is worse than 1 b")


def test_equal_systems_are_not_distinguishable() -> None:
    result = compare([outputs("a", WRONG), outputs("b", WRONG)])
    assert result["verdicts"]["2 b"][0] == "2 b is not distinguishable from 1 a at p < 0.05."
    assert result["won"]["2 b"] == {"won": [], "lost": []}
    assert result["scores"]["2 b"]["bleu"]["p"][1] == 1


def test_p_has_a_minimum_where_few_sentences_differ() -> None:
    few = compare([outputs("a", [*WRONG[:9], *RIGHT[9:]]), outputs("b", RIGHT)])
    n = sum(wrong != right for wrong, right in zip(WRONG[:9], RIGHT, strict=False))
    # n sentences that differ can be exchanged in 2 ** n ways, and two of them give the largest difference.
    assert few["scores"]["2 b"]["bleu"]["p"][1] >= 2 ** (1 - n) > 0.01


def test_group_sizes_sum_to_the_test_set() -> None:
    systems = [outputs("a", WRONG), outputs("b", RIGHT)]
    few = [each._replace(pairs=each.pairs[:3], hypotheses=each.hypotheses[:3]) for each in systems]
    for some, n in ((systems, 60), (few, 3)):
        for groups in compare(some)["groups"].values():
            assert sum(row["sentences"] for row in groups.values()) == n
            assert all(row["2 b"] == pytest.approx(100) for row in groups.values())


def test_other_test_sets_are_an_error() -> None:
    other = outputs("b", RIGHT)._replace(pairs=[Pair("one", "another", ("another",))] * 60)
    with pytest.raises(UserError, match="b: another test set than that of a"):
        compare([outputs("a", RIGHT), other])


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str, list[str]], Path]:
    def write(name: str, lines: list[str]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    return write


def test_files_are_compared_line_by_line(files: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(files("a.txt", WRONG)), str(files("b.txt", RIGHT))]
    common = ["--src", str(files("src", SOURCES)), "--ref", str(files("ref", RIGHT))]
    assert script.main([*paths, *common]) == 0
    assert "2 b.txt is better than 1 a.txt" in capsys.readouterr().out
    assert script.main([str(files("short.txt", RIGHT[:3])), *paths, *common]) == 2
    assert "short.txt: not aligned" in capsys.readouterr().err
    assert script.main(paths[:1]) == 2
    assert script.main([*paths, "--src", common[1]]) == 2


def test_an_evaluation_is_found_in_its_run(files: Callable, tmp_path: Path) -> None:
    for name, lines in {"source": SOURCES, "reference.0": RIGHT, "hypotheses": WRONG}.items():
        files(f"run/evaluation/test/{name}.txt", lines)
    files("run/bundle/config.json", [])
    files("run/evaluation/test/scores.json", [json.dumps({"model": "m", "direction": "zh_en"})])
    assert of_evaluation(tmp_path / "run") == outputs(str(tmp_path / "run"), WRONG)
    with pytest.raises(UserError, match=r"found none: run scripts/evaluate\.py --model"):
        of_evaluation(tmp_path)


def test_bundles_translate_the_test_set(files: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    golden, good = str(Path(__file__).parents[1] / "golden" / "bundle"), str(files("b.txt", RIGHT[:9]))
    command = [golden, good, "--src", str(files("src", SOURCES[:9])), "--ref", good]
    assert script.main(command) == 0
    printed = capsys.readouterr().out
    assert f"2 b.txt is better than 1 {golden}" in printed
    assert re.search(r"human judges prefer the same system: BLEU \+\S+ in at least 85 %", printed)

"""Scores, compared with those of sacrebleu's command line."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.config import SearchConfig
from dragoman.data.text import Pair
from dragoman.errors import UserError
from dragoman.evaluation.scores import evaluate
from dragoman.languages import Direction

TEXTS = [
    ("好久不见，老朋友。", "Long time no see, old friend.", "It's been ages, friend."),
    ("今天天气很好。", "The weather is fine today."),
    ("我们明天去公园吧。", "Let us go to the park tomorrow."),
]
# Two corpora: a, whose pair has two references, and b
INTO_EN = [Pair(zh, en[0], tuple(en), corpus) for (zh, *en), corpus in zip(TEXTS, "abb", strict=True)]
INTO_ZH = [Pair(en, zh, (zh,)) for zh, en, *_ in TEXTS]


def score(pairs: list[Pair], folder: Path) -> dict[str, Any]:
    """The scores of one and a half right translations."""
    answers = [SimpleNamespace(text=text) for text in (pairs[0].tgt, pairs[1].tgt[:12], "")]
    bundle = SimpleNamespace(meta={"name": "parrot"})
    translator: Any = SimpleNamespace(engine="torch", bundle=bundle, stream=lambda *_, **__: answers)
    direction = Direction("en", "zh") if pairs == INTO_ZH else Direction("zh", "en")
    return evaluate(translator, pairs, folder, SearchConfig(), name="talk", direction=direction)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairs", "options"), [(INTO_EN, "-l zh-en"), (INTO_ZH, "-l en-zh --ter-normalized --ter-asian-support")]
)
def test_the_command_of_sacrebleu_gives_the_same_scores(pairs: list[Pair], options: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    scores = score(pairs, folder)
    references = sorted(path.name for path in folder.glob("reference.*.txt"))
    common = ["-i", "hypotheses.txt", "-m", "bleu", "chrf", "ter", "-w", "6"]
    command = [sys.executable, "-m", "sacrebleu", *references, *common, *options.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    theirs = {entry["name"]: entry["score"] for entry in json.loads(done.stdout)}
    assert theirs == {ours.name: pytest.approx(ours.score, abs=1e-5) for ours in scores["all"].values()}


def test_each_corpus_has_scores_of_its_own(tmp_path: Path) -> None:
    scores = score(INTO_EN, tmp_path / "out")
    assert list(scores) == ["all", "a", "b"]
    assert scores["a"]["bleu"].score == pytest.approx(100)
    assert scores["b"]["bleu"].score < scores["all"]["bleu"].score < 100


def test_only_an_evaluation_is_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        score(INTO_EN, tmp_path / "out")
    with pytest.raises(UserError, match="scores of another test set"):
        score(INTO_ZH, tmp_path / "out")
    assert (tmp_path / "out" / "source.txt").read_text().splitlines() == [pair.src for pair in INTO_EN]
    with pytest.raises(UserError, match="not an evaluation"):
        score(INTO_EN, tmp_path)

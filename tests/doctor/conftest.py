"""A sound corpus, and a doctor for corpora written by tests."""

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import CorpusConfig, DataConfig
from dragoman.doctor.report import examine

Pairs = list[tuple[str, str]]
PARTS = [
    [("我", "I"), ("你", "You"), ("我们的朋友", "Our friends"), ("那些年轻的学生", "Those young students")],
    [("", ""), ("今天", " today"), ("每天晚上八点以后", " every evening after eight o'clock")],
    [("", ""), ("在花园里", " in the garden"), ("在火车站前面的广场上", " on the square before the station")],
    [("喜欢", " like"), ("看见", " see"), ("正在到处寻找", " are looking everywhere for")],
    [("书", " books"), ("白色的花", " white flowers"), ("邻居家的那只小狗", " the little dog of the neighbours")],
    [("。", "."), ("！", "!"), ("吗？", ", do they?")],
]


def sound_pairs(n: int, seed: int = 1) -> Pairs:
    """Different pairs of very different lengths, in random order; at most 972."""
    pairs = []
    for i, parts in enumerate(random.Random(seed).sample(list(product(*PARTS)), n)):
        number = str(i) if i % 7 == 3 else ""
        src, (who, when, where, do, what, end) = "".join(zh for zh, _ in parts[:-1]), (en for _, en in parts)
        pairs.append((src + number + parts[-1][0], who + do + what + where + when + " " * bool(number) + number + end))
    return pairs


class Doctor:
    """Data doctor for corpora that are written into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def corpus(self, pairs: Pairs, split: str = "train") -> CorpusConfig:
        """Two aligned files, in which lone surrogates are bytes that are not UTF-8."""
        paths = [self.folder / f"{split}.{language}" for language in ("zh", "en")]
        for side, path in enumerate(paths):
            path.write_bytes("".join(f"{pair[side]}\n" for pair in pairs).encode(errors="surrogateescape"))
        return CorpusConfig(src_path=str(paths[0]), tgt_path=str(paths[1]), split=split)

    def __call__(self, *corpora: CorpusConfig | Pairs, **settings: Any) -> dict[str, Any]:
        configs = [each if isinstance(each, CorpusConfig) else self.corpus(each) for each in corpora]
        return examine(DataConfig(corpora=configs, **settings))


@pytest.fixture(scope="session")
def sound() -> Callable[..., Pairs]:
    return sound_pairs


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path)


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report on a sound corpus."""
    return Doctor(tmp_path_factory.mktemp("healthy"))(sound_pairs(300))


@pytest.fixture(scope="session")
def rows_of() -> Callable[[dict[str, Any], str], list[int]]:
    """The rows of a kind of finding in a report."""

    def rows(report: dict[str, Any], kind: str) -> list[int]:
        findings = [finding for finding in report["findings"] if finding["kind"] == kind]
        return [place["row"] for finding in findings for place in finding["places"]]

    return rows

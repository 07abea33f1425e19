"""A clean corpus, and how to plant one fault in it and ask the doctor."""

import random
from pathlib import Path
from typing import Any

from dragoman.data.corpus import CorpusConfig
from dragoman.data.prepare import DataConfig
from dragoman.data.tokenizer import TokenizerConfig
from dragoman.doctor.examine import examine

WHO = [
    ("我", "I"),
    ("你", "You"),
    ("我们的朋友", "Our friends"),
    ("他们", "They"),
    ("那些年轻的学生", "Those young students"),
]
DO = [
    ("喜欢", "like"),
    ("看见", "see"),
    ("要买", "want to buy"),
    ("正在到处寻找", "are looking everywhere for"),
]
WHAT = [
    ("书", "books"),
    ("白色的花", "white flowers"),
    ("邻居家的那只小狗", "the little dog of the neighbours"),
    ("茶", "tea"),
]
WHEN = [("", ""), ("今天", " today"), ("每天晚上八点以后", " every evening after eight o'clock")]  # fmt: skip
ENDS = [("。", "."), ("！", "!"), ("吗？", ", do they?")]
ROOMS = [
    ("", ""),
    ("在花园里", " in the garden"),
    ("在学校", " at school"),
    ("在火车站前面的广场上", " on the square before the station"),
]


def clean_pairs(n: int, seed: int = 1) -> list[tuple[str, str]]:
    """Different pairs of very different lengths, some with a number, in no order. At most 2,880."""
    every = [
        (f"{who[0]}{when[0]}{room[0]}{do[0]}{what[0]}{end[0]}", f"{who[1]} {do[1]} {what[1]}{room[1]}{when[1]}{end[1]}")
        for who in WHO for do in DO for what in WHAT for when in WHEN for end in ENDS for room in ROOMS
    ]  # fmt: skip
    chance = random.Random(seed)
    chosen = chance.sample(every, n)
    return [
        (f"{src[:-1]}{i}{src[-1]}", f"{tgt[:-1]} {i}{tgt[-1]}") if i % 7 == 3 else (src, tgt)
        for i, (src, tgt) in enumerate(chosen)
    ]


def write(folder: Path, pairs: list[tuple[str, str]], name: str = "a") -> CorpusConfig:
    """As two aligned files."""
    paths = [folder / f"{name}.{side}" for side in ("zh", "en")]
    for side, path in enumerate(paths):
        path.write_bytes("".join(f"{pair[side]}\n" for pair in pairs).encode("utf-8", "surrogateescape"))
    return CorpusConfig(src_path=str(paths[0]), tgt_path=str(paths[1]))


def ask(*corpora: CorpusConfig, **options: Any) -> dict[str, Any]:
    """The doctor's report."""
    options.setdefault("tokenizer", TokenizerConfig(vocab_size=340))
    return examine(DataConfig(corpora=list(corpora), **options))


def places(report: dict[str, Any], kind: str) -> list[int]:
    """The lines of a finding; none where there is no such finding."""
    return [
        place.get("line", place.get("row"))
        for finding in report["findings"]
        if finding["kind"] == kind
        for place in finding["places"]
    ]

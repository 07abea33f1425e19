"""Small corpora, and their preparation in folders of the test session."""

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.config import CorpusConfig, DataConfig, TokenizerConfig
from dragoman.data.collate import Batch
from dragoman.data.datamodule import TranslationData

Prepare = Callable[..., TranslationData]

_WHO = [("我", "I"), ("你", "You"), ("我们", "We"), ("他们", "They"), ("学生", "Students"), ("老师", "Teachers")]
_DO = [("喜欢", "like"), ("看见", "see"), ("买", "buy"), ("要", "want"), ("找", "look for")]
_WHAT = [("书", "the book"), ("花", "flowers"), ("那只狗", "the dog"), ("苹果", "apples"), ("热茶", "the hot tea")]
_WHEN = [("", ""), ("今天", " today"), ("现在", " now"), ("每天", " every day")]
PAIRS = [
    (f"{who[0]}{when[0]}{do[0]}{what[0]}。", f"{who[1]} {do[1]} {what[1]}{when[1]}.")
    for who, do, what, when in itertools.product(_WHO, _DO, _WHAT, _WHEN)
]


@pytest.fixture(scope="session")
def pairs() -> list[tuple[str, str]]:
    """600 pairs of Chinese and English."""
    return PAIRS


@pytest.fixture(autouse=True, scope="session")
def _datasets() -> None:
    """Import the library once, outside the time of a test."""
    import datasets  # noqa: F401


@pytest.fixture(autouse=True)
def _no_corpora_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write bytes, lines, TSV pairs or JSONL rows below tmp_path; return the path."""

    def write(name: str, content: bytes | list) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, bytes):
            lines = [
                line if isinstance(line, str)
                else "\t".join(line) if isinstance(line, tuple)
                else json.dumps(line, ensure_ascii=False)
                for line in content
            ]  # fmt: skip
            content = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return str(path)

    return write


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def prepare(tmp_path: Path, cache: str) -> Prepare:
    """Prepare corpora (paths or entries of data.corpora) with a small vocabulary."""

    def prepare(*corpora: CorpusConfig | str, run: str = "run", seed: int = 1, **options: object) -> TranslationData:
        options = {"tokenizer": TokenizerConfig(vocab_size=340), "cache": cache} | options
        entries = [CorpusConfig(path=corpus) if isinstance(corpus, str) else corpus for corpus in corpora]
        return TranslationData(DataConfig(corpora=entries, **options), tmp_path / run, seed)

    return prepare


@pytest.fixture
def small(prepare: Prepare, write: Callable[..., str]) -> Prepare:
    """PAIRS in batches of at most 300 tokens."""
    path = write("small.tsv", PAIRS)
    return lambda *corpora, **options: prepare(*(corpora or [path]), **{"max_tokens": 300, "max_length": 64} | options)


@pytest.fixture
def first() -> Callable[[TranslationData, int], list[Batch]]:
    """The first n training batches."""
    return lambda data, n: list(itertools.islice(data.train_dataloader(), n))


@pytest.fixture
def report(tmp_path: Path) -> Callable[[], dict]:
    """Counts of training pairs in the cleaning report, but for read and repaired."""

    def report() -> dict:
        counts = json.loads((tmp_path / "run" / "cleaning.json").read_text())["train"]
        return {name: n for name, n in counts.items() if name not in ("read", "repaired")}

    return report


@pytest.fixture
def seen() -> Callable[[TranslationData], list[tuple[str, str]]]:
    """The pairs of the first epoch as text, sorted."""

    def seen(data: TranslationData) -> list[tuple[str, str]]:
        texts = []
        for batch in itertools.islice(data.train_dataloader(), data.plan.batches_per_epoch):
            src = [data.src_tokenizer.decode(ids) for ids in batch.src.tolist()]
            tgt = [data.tgt_tokenizer.decode(ids) for ids in batch.tgt_out.tolist()]
            texts += zip(src, tgt, strict=True)
        return sorted(texts)

    return seen

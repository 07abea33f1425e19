"""What the tests of the data room share: preparing in a folder of their own, nothing left in the user's caches."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import DataConfig, TranslationData
from dragoman.data.tokenizer import TokenizerConfig


@pytest.fixture(autouse=True, scope="session")
def own_cache_of_datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    import datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        yield


@pytest.fixture(autouse=True)
def no_corpora_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_DATA", raising=False)


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., TranslationData]:
    """Prepare corpora given as entries of data.corpora, with a small vocabulary, everything under tmp_path."""

    def prepare(
        *corpora: CorpusConfig, run: str = "run", seed: int = 1, **options: object
    ) -> TranslationData:
        options.setdefault("tokenizer", TokenizerConfig(vocab_size=340))
        config = DataConfig(corpora=list(corpora), cache=str(tmp_path / "cache"), **options)  # type: ignore[arg-type]
        data = TranslationData(config, tmp_path / run, seed)
        data.prepare()
        return data

    return prepare

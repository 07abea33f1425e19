"""Folders laid out like hub datasets, and hub datasets with `load_dataset` mocked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import CorpusConfig
from dragoman.data.readers import NotFoundError, find
from dragoman.errors import UserError

PAIR = {"zh": "你", "en": "you"}
Write = Callable[..., str]


@pytest.fixture
def splits(write: Write, tmp_path: Path) -> Callable[..., dict[str, list[str]]]:
    """Write files whose one row is their name; return the rows of each split."""

    def splits(*names: str) -> dict[str, list[str]]:
        for file in names:
            write(f"corpus/{file}", [{"zh": file, "en": "you"}])
        corpus = find(CorpusConfig(path=str(tmp_path / "corpus")), "zh", "en")
        return {split: sorted(text for chunk in rows for text in chunk.src) for split, rows in corpus.open().items()}

    return splits


@pytest.mark.parametrize(
    "expected",
    [
        {"train": ["train.jsonl.gz"], "validation": ["dev.jsonl"], "test": ["test.jsonl"]},
        {
            "train": ["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl"],
            "test": ["data/test-00000-of-00001.jsonl"],
        },
        {"train": ["training/a.jsonl", "training/b.jsonl"], "validation": ["valid/test.jsonl"]},
        {"train": ["a.jsonl", "latest.jsonl"]},
        {"validation": ["corpus_val.jsonl"]},
    ],
)
def test_splits_follow_the_names(splits: Callable, expected: dict[str, list[str]]) -> None:
    assert splits(*(file for files in expected.values() for file in files)) == expected


def test_hidden_files_other_types_and_data_files_of_a_readme_are_ignored(splits: Callable, write: Write) -> None:
    write("corpus/.cache/train.jsonl", ["damaged"])
    write("corpus/train.py", ["raise SystemExit"])
    readme = "configs: [{config_name: default, data_files: https://example.org/a.jsonl}]"
    write("corpus/README.md", ["---", readme, "---", "# A corpus"])
    assert splits("train.jsonl", "test.jsonl") == {"train": ["train.jsonl"], "test": ["test.jsonl"]}


def test_an_empty_folder_fails(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="doesn't contain any data files"):
        find(CorpusConfig(path=str(tmp_path)), "zh", "en")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("offline")
class TestMockedHub:
    """Hub datasets with `datasets.load_dataset` replaced, without a network."""

    def find(self, monkeypatch: pytest.MonkeyPatch, splits: dict[str, Any], **options: Any) -> Any:
        import datasets

        loaded = {split: datasets.Dataset.from_list(rows) for split, rows in splits.items()}
        monkeypatch.setattr(datasets, "load_dataset", lambda path, name: loaded)
        return find(CorpusConfig(path="owner/corpus", **options), "zh", "en")

    def test_a_hub_dataset_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = [{"translation": PAIR, "references": ["you", "thou"]}]
        corpus = self.find(monkeypatch, {"train": rows, "dev": rows, "extra": rows})
        splits = {split: list(chunks) for split, chunks in corpus.open().items()}
        assert splits.keys() == {"train", "validation"}
        assert splits["train"][0][:3] == (["你"], ["you"], [["you", "thou"]])
        assert corpus.key[2].keys() == splits.keys()

    def test_a_dataset_without_known_splits_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(UserError, match=r"no split train, validation, test \(found extra\)"):
            self.find(monkeypatch, {"extra": [{"translation": PAIR}]})


def test_an_unreachable_hub_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    # No server listens at port 9.
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    with pytest.raises(UserError, match=r"corpus \(en-zh\): the hub http://127.0.0.1:9 cannot be reached.*searched"):
        find(CorpusConfig(path="owner/corpus", name="en-zh"), "zh", "en")


@pytest.mark.usefixtures("offline")
def test_hub_names_have_an_owner() -> None:
    for path in ("my.tsv", "a/b/c", "/a/b", "../b"):
        with pytest.raises(NotFoundError, match=rf"^data\.corpora: no '{path}'"):
            find(CorpusConfig(path=path), "zh", "en")

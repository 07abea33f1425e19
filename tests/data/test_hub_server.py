"""The way to a corpus on the hub and back, through the real `datasets` and `huggingface_hub` and a server on loopback.

Each preparation is a process of its own, with caches of its own: these libraries read their settings when imported.
"""

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpora import PAIRS, write_tsv
from stand_in_hub import Hub, serving

NAME = "Helsinki-NLP/opus-100"
SPLITS = {"test": PAIRS[:20], "train": PAIRS[40:], "validation": PAIRS[20:40]}
LOCAL = [("好久不见。", "Long time no see."), ("早上好。", "Good morning."), ("我爱你。", "I love you.")]

PREPARE = """
import json, pathlib, sys, time
from dragoman.data.corpus import CorpusConfig
from dragoman.data.prepare import DataConfig, prepare
from dragoman.data.tokenizer import TokenizerConfig
from dragoman.errors import plain_errors
cache, runs, corpora = map(json.loads, sys.argv[1:])
corpora = [CorpusConfig(**corpus) for corpus in corpora]
config = DataConfig(corpora=corpora, cache=cache, tokenizer=TokenizerConfig(vocab_size=340))
for run in runs:
    begin = time.monotonic()
    with plain_errors():
        done = prepare(config, pathlib.Path(run))
    found = {"notes": done.notes, "fingerprint": done.fingerprint, "seconds": time.monotonic() - begin}
    for split in ("validation", "test"):
        found[split] = [(pair.src, pair.tgt) for pair in done.pairs(split)]
    src, tgt = done.train_ids()
    sides = ((done.src_tokenizer, src), (done.tgt_tokenizer, tgt))
    found["train"] = [[t.decode(ids[i].tolist()) for t, ids in sides] for i in range(len(src))]
    print("found", json.dumps(found))
"""


def card() -> str:
    """The head of OPUS-100's README.md, for two of its language pairs."""
    lines = ["---", "dataset_info:"]
    for pair in ("ar-en", "en-zh"):
        sides = pair.split("-")
        lines += [f"- config_name: {pair}", "  features:", "  - name: translation", "    dtype:"]
        lines += ["      translation:", "        languages:", *(f"        - {side}" for side in sides)]
        lines += ["  splits:"]
        for split, pairs in SPLITS.items():
            lines += [f"  - name: {split}", "    num_bytes: 1000", f"    num_examples: {len(pairs)}"]
        lines += ["  download_size: 1000", "  dataset_size: 1000"]
    lines += ["configs:"]
    for pair in ("ar-en", "en-zh"):
        lines += [f"- config_name: {pair}", "  data_files:"]
        for split in SPLITS:
            lines += [f"  - split: {split}", f"    path: {pair}/{split}-*"]
    return "\n".join([*lines, "---", "# OPUS-100", ""])


def parquet(rows: list[dict[str, str]]) -> bytes:
    """A file with the one column `translation`, a struct of two languages."""
    buffer = io.BytesIO()
    pq.write_table(pa.table({"translation": rows}), buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    files = {"README.md": card().encode(), ".gitattributes": b"*.parquet filter=lfs\n"}
    for split, pairs in SPLITS.items():
        name = f"{split}-00000-of-00001.parquet"
        files[f"ar-en/{name}"] = parquet([{"ar": "مرحبا", "en": "Hello."} for _ in pairs])
        files[f"en-zh/{name}"] = parquet([{"en": en, "zh": zh} for zh, en in pairs])
    return files


@pytest.fixture
def hub(files: dict[str, bytes]) -> Iterator[Hub]:
    with serving(Hub(NAME, files)) as standing:
        yield standing


@pytest.fixture
def nobody() -> str:
    """The address of a hub that has gone: nothing listens there."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        return f"http://127.0.0.1:{gone.getsockname()[1]}"


class Home:
    """A user with empty caches and a phrasebook."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.local = {"path": str(write_tsv(folder / "phrases.tsv", LOCAL))}
        self.opus = {"path": NAME, "name": "en-zh"}

    def prepare(
        self, endpoint: str, *corpora: dict[str, Any], runs: tuple[str, ...] = ("run",)
    ) -> "subprocess.CompletedProcess[str]":
        """Prepare `corpora` for one run after the other."""
        left_out = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN", "DRAGOMAN_DATA")
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        environment |= {
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(self.folder / "hf"),
            "HF_DATASETS_CACHE": str(self.folder / "datasets"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
        }
        arguments = map(json.dumps, (str(self.folder / "cache"), runs, corpora))
        return subprocess.run(
            [sys.executable, "-c", PREPARE, *arguments],
            env=environment, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def prepared(
        self, endpoint: str, *corpora: dict[str, Any], runs: tuple[str, ...] = ("run",)
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """What a preparation that must succeed found for each run, and what it said."""
        done = self.prepare(endpoint, *corpora, runs=runs)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        found = [json.loads(line.removeprefix("found ")) for line in lines if line.startswith("found {")]
        return found, [line for line in lines if not line.startswith("found {")]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_corpus_from_the_hub_arrives_source_first_and_stays_when_the_hub_has_gone(
    home: Home, hub: Hub, nobody: str
) -> None:
    corpora = ({**home.opus, "optional": True}, home.local)
    (online,), _ = home.prepared(hub.url, *corpora)
    assert online["notes"] == []
    for split, pairs in SPLITS.items():
        arrived = set(map(tuple, online[split]))
        assert arrived == set(pairs) | (set(LOCAL) if split == "train" else set())
    fetched = {asked for asked in hub.asked if asked.endswith(".parquet") and asked.startswith("GET")}
    assert len(fetched) == len(SPLITS), "each split once, and nothing of the other languages"
    assert all("/en-zh/" in asked for asked in fetched)
    offline, said = home.prepared(nobody, *corpora, runs=("run", "another run"))
    for found in offline:
        assert found["fingerprint"] == online["fingerprint"]
        assert found["notes"] == []
    assert not any("Preparing" in line for line in said)


def test_a_silent_hub_is_told_in_two_lines_within_ten_seconds_and_the_run_stays_without_it(
    home: Home, hub: Hub
) -> None:
    corpora = ({**home.opus, "optional": True}, home.local)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        (alone,), said = home.prepared(f"http://127.0.0.1:{silent.getsockname()[1]}", *corpora)
    assert alone["seconds"] < 10
    assert said[:2] == alone["notes"]
    assert "cannot be reached" in said[0]
    assert f"without {NAME}" in said[1]
    assert sum(NAME in line for line in said) == 2
    (same, new), _ = home.prepared(hub.url, *corpora, runs=("run", "new"))
    assert same["fingerprint"] == alone["fingerprint"]
    assert f"begun without {NAME}" in same["notes"][0]
    assert new["notes"] == []
    assert set(map(tuple, new["train"])) == {*SPLITS["train"], *LOCAL}


def test_a_corpus_that_is_not_optional_is_missed_in_one_line(home: Home, nobody: str) -> None:
    done = home.prepare(nobody, home.opus, home.local)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    for told in (NAME, nobody, "cannot be reached"):
        assert told in line


def test_a_dataset_that_the_hub_does_not_have_is_refused_in_one_line(home: Home, hub: Hub) -> None:
    done = home.prepare(hub.url, {"path": "Helsinki-NLP/opus-1000", "name": "en-zh"})
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "opus-1000" in line


def test_a_configuration_that_the_dataset_does_not_have_is_refused_naming_those_it_has(
    home: Home, hub: Hub
) -> None:
    done = home.prepare(hub.url, {"path": NAME, "name": "zh-en"})
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "zh-en" in line
    assert "'en-zh'" in line

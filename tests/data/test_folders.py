"""Which files of a corpus folder are read, and that no README and no link makes it any other."""

import gzip
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpora import PAIRS, translation, write_folder, write_tsv
from dragoman.data.corpus import CorpusConfig
from dragoman.data.sources import find
from dragoman.errors import UserError

CANARY = ("金丝雀。", "The canary sings.")


def read(folder: Path, name: str | None = None) -> dict[str, list[tuple[str, str]]]:
    source = find(CorpusConfig(path=str(folder), name=name), "zh", "en", None)
    return {
        split: [pair for rows in its.chunks for pair in zip(rows.src, rows.tgt, strict=True)]
        for split, its in source.open().items()
    }


def write(path: Path, *pairs: tuple[str, str]) -> Path:
    """A file of the kind its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [translation(*pair) for pair in pairs]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".tsv":
        write_tsv(path, list(pairs))
    else:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def card(folder: Path, *data_files: str, config: str = "default") -> Path:
    lines = [
        "---",
        "license: mit",
        "configs:",
        f"- config_name: {config}",
        "  data_files:",
        *data_files,
        "---",
    ]
    (folder / "README.md").write_text("\n".join(lines) + "\n# A corpus\n", encoding="utf-8")
    return folder


LAYOUTS = {
    "train.jsonl.gz validation.jsonl.gz test.jsonl": {"train": [0], "validation": [1], "test": [2]},
    "data/train-00000-of-00002.parquet data/train-00001-of-00002.parquet": {"train": [0, 1]},
    "train.tsv dev.tsv eval.tsv": {"train": [0], "validation": [1], "test": [2]},
    "train/a.jsonl valid/a.jsonl": {"train": [0], "validation": [1]},
    "zh-en.train.jsonl my_test.jsonl": {"train": [0], "test": [1]},
    "a.jsonl b/c.jsonl": {"train": [0, 1]},
    "train.jsonl .train.jsonl .git/train.jsonl": {"train": [0]},
    "trainer.jsonl contest.jsonl": {"train": [0, 1]},
}


@pytest.mark.parametrize("names", LAYOUTS)
def test_splits_are_told_by_names_as_on_the_hub(names: str, tmp_path: Path) -> None:
    # In the order of the names, so that pair i is of file i.
    for name, pair in zip(names.split(), PAIRS, strict=False):
        write(tmp_path / name, pair)
    expected = {split: [PAIRS[i] for i in rows] for split, rows in LAYOUTS[names].items()}
    if "trainer" in names:
        expected["train"].reverse()
    assert read(tmp_path) == expected


CARDS = {
    "one name": (["  - first.jsonl"], {"train": [0]}),
    "a split": (["  - split: test", "    path: ./b/second.jsonl"], {"test": [1]}),
    "patterns": (["  - split: train", "    path: ['fir*.jsonl', 'b/s?cond.*']"], {"train": [0, 1]}),
    "in all folders": (["  - split: dev", "    path: '**/*.jsonl'"], {"validation": [1, 0]}),
    "data only": (["  - '**'"], {"train": [1, 0]}),
    "of that folder only": (["  - split: train", "    path: '*.jsonl'"], {"train": [0]}),
}


@pytest.mark.parametrize("kind", CARDS)
def test_a_readme_says_which_files_are_which_split(kind: str, tmp_path: Path) -> None:
    for name, pair in zip(("first.jsonl", "b/second.jsonl"), PAIRS, strict=False):
        write(tmp_path / name, pair)
    data_files, expected = CARDS[kind]
    assert read(card(tmp_path, *data_files)) == {
        split: [PAIRS[i] for i in rows] for split, rows in expected.items()
    }


def test_a_configuration_is_chosen_by_its_name(tmp_path: Path) -> None:
    write(tmp_path / "ar-en" / "train.jsonl", PAIRS[0])
    write(tmp_path / "en-zh" / "train-00000-of-00001.parquet", PAIRS[1])
    card(tmp_path, "  - ar-en/*", "- config_name: en-zh", "  data_dir: en-zh", config="ar-en")
    assert read(tmp_path, "en-zh") == {"train": [PAIRS[1]]}
    for name in (None, "zh-en"):
        with pytest.raises(UserError, match="has the configurations ar-en, en-zh: name one"):
            read(tmp_path, name)
    card(tmp_path, "  - ar-en/*")
    with pytest.raises(UserError, match="configurations default: name one"):
        read(tmp_path, "zh-en")
    (tmp_path / "README.md").unlink()
    with pytest.raises(UserError, match="no configuration 'zh-en'"):
        read(tmp_path, "zh-en")


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """What a server on loopback was asked for; the address comes first."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(translation(*CANARY)).encode())

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    paths.append(f"http://127.0.0.1:{server.server_port}")
    yield paths
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "pattern",
    [
        "../canary.jsonl", "HOME/canary.jsonl", "file://HOME/canary.jsonl", "b/../../canary.jsonl", "URL/train.jsonl",
        ".train.jsonl.gz", "./.train.jsonl.gz", "*/../../canary.jsonl", "zip://train.jsonl::HOME/canary.zip",
        "[.]train.jsonl.gz", ".git/train.jsonl", "absent.jsonl", "",
    ],
)  # fmt: skip
@pytest.mark.parametrize("within", ["path", "list", "data_dir"])
def test_a_readme_makes_nothing_read_that_cannot_be_seen_in_the_folder(
    pattern: str, within: str, tmp_path: Path, asked: list[str]
) -> None:
    folder = write_folder(tmp_path / "corpus", {"train": [translation(*PAIRS[0])]})
    for hidden in (".train.jsonl.gz", ".git/train.jsonl", "../canary.jsonl"):
        write(folder / hidden, CANARY)
    pattern = json.dumps(pattern.replace("HOME", str(tmp_path)).replace("URL", asked[0]))
    if within == "data_dir":
        card(folder, "  - train.jsonl.gz", f"  data_dir: {pattern}")
    else:
        card(
            folder,
            *(["  - split: train", f"    path: {pattern}"] if within == "path" else [f"  - {pattern}"]),
        )
    if (pattern, within) == ('""', "data_dir"):
        assert read(folder) == {"train": [PAIRS[0]]}
        return
    with pytest.raises(UserError, match=r"README\.md: its configs name .* no other is read") as error:
        read(folder)
    assert "\n" not in str(error.value)
    assert len(asked) == 1


def test_the_other_file_in_which_datasets_looks_for_configs_is_not_obeyed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "corpus", {"train": [translation(*PAIRS[0])]})
    write(tmp_path / "canary.jsonl", CANARY)
    (folder / ".huggingface.yaml").write_text(
        "configs:\n- config_name: default\n  data_files: ../canary.jsonl\n"
    )
    assert read(folder) == {"train": [PAIRS[0]]}


@pytest.mark.parametrize("name", ["train.jsonl", "README.md", "b/c.tsv"])
def test_a_link_out_of_the_folder_is_refused_and_one_within_it_is_followed(name: str, tmp_path: Path) -> None:
    outside, folder = write(tmp_path / "canary.jsonl", CANARY), tmp_path / "corpus"
    (folder / "b").mkdir(parents=True)
    write(folder / "parts" / "one.jsonl", PAIRS[0])
    (folder / name).symlink_to(outside)
    with pytest.raises(UserError, match=f"{name} is a link that leads out of the corpus folder"):
        read(folder)
    (folder / name).unlink()
    (folder / "train.jsonl").symlink_to("parts/one.jsonl")
    (folder / "test").symlink_to(tmp_path)
    assert read(folder) == {"train": [PAIRS[0]]}


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ("configs: [", "head is not YAML"),
        ("configs: " + "[" * 5000, "head is not YAML"),
        ("configs: 3", "not a list of objects"),
        ("configs: [3]", "not a list of objects"),
        ("a: &a [x]\nconfigs: [*a]", "aliases"),
        ("configs:\n- data_files: {train: train.jsonl.gz}", "its configs name"),
        ("configs:\n- data_files: 3", "its configs name"),
        ("x: !!python/object/apply:os.system [exit]", "head is not YAML"),
    ],
)
def test_a_readme_that_says_nothing_sensible_is_refused_in_one_line(
    head: str, told: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "corpus", {"train": [translation(*PAIRS[0])]})
    (folder / "README.md").write_text(f"---\n{head}\n---\n")
    with pytest.raises(UserError, match=rf"README\.md.*{told}") as error:
        read(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "head", ["# Only a title", "", "---\nlicense: mit\n---\n", "---\nno end", "---\n---\n"]
)
def test_a_readme_without_configs_changes_nothing(head: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "corpus", {"train": [translation(*PAIRS[0])]})
    (folder / "README.md").write_text(head)
    assert read(folder) == {"train": [PAIRS[0]]}


@pytest.mark.parametrize("name", ["train.csv", "train.json", "data/train-00000-of-00001.arrow", "test.zip"])
def test_a_split_of_a_kind_that_is_not_read_is_refused_and_not_left_out(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "corpus", {"train": [translation(*PAIRS[0])]})
    (folder / "data").mkdir()
    (folder / name).write_text("zh,en\n")
    (folder / "train.log").write_text("is no corpus")
    with pytest.raises(UserError, match=f"{name} is of no known kind"):
        read(folder)


def test_a_folder_with_nothing_to_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"holds no \.tsv \.jsonl \.parquet file"):
        read(tmp_path)


def test_what_is_read_is_in_the_digest_and_what_is_hidden_is_neither(tmp_path: Path) -> None:
    def digest() -> str:
        return find(CorpusConfig(path=str(tmp_path)), "zh", "en", None).digest

    write(tmp_path / "train.jsonl", PAIRS[0])
    seen = {digest()}
    write(tmp_path / "train.jsonl", PAIRS[1])
    seen.add(digest())
    write(tmp_path / "b" / "train.jsonl", PAIRS[1])
    seen.add(digest())
    card(tmp_path, "  - train.jsonl")
    seen.add(digest())
    assert len(seen) == 4
    write(tmp_path / ".git" / "index.jsonl", CANARY)
    write(tmp_path / ".train.jsonl", CANARY)
    assert digest() in seen


def test_a_pipe_in_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", PAIRS[0])
    os.mkfifo(tmp_path / "test.jsonl")
    with pytest.raises(UserError, match=r"test\.jsonl is not a regular file"):
        read(tmp_path)

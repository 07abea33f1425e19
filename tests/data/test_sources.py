"""Where corpora are sought, how long the hub is waited for, and what is used in its absence."""

import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from corpora import PAIRS, translation, write_folder, write_tsv
from dragoman.data import hub
from dragoman.data.corpus import CorpusConfig
from dragoman.data.sources import NotFoundError, find
from dragoman.errors import UserError


def digest(path: Path | str, **options: object) -> str:
    return find(CorpusConfig(path=str(path), **options), "zh", "en", root=None).digest  # type: ignore[arg-type]


def test_a_path_is_sought_here_and_then_under_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, root = tmp_path / "here", tmp_path / "root"
    write_tsv(here / "a.tsv", PAIRS[:5])
    write_tsv(root / "a.tsv", PAIRS[:9])
    write_tsv(root / "b.tsv", PAIRS[:9])
    monkeypatch.chdir(here)
    for name, n_rows in (("a.tsv", 5), ("b.tsv", 9), (str(root / "a.tsv"), 9)):
        source = find(CorpusConfig(path=name), "zh", "en", root=str(root))
        assert source.open()["train"].n_rows == n_rows
    monkeypatch.setenv("DRAGOMAN_DATA", str(root))
    assert find(CorpusConfig(path="b.tsv"), "zh", "en", root=None).open()["train"].n_rows == 9


def test_a_missing_corpus_is_refused_naming_every_place_and_the_nearest_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "root" / "tatoeba").mkdir(parents=True)
    with pytest.raises(NotFoundError) as error:
        find(CorpusConfig(path="tatoba"), "zh", "en", root="root")
    for told in (str(tmp_path / "tatoba"), str(tmp_path / "root" / "tatoba"), "did you mean 'tatoeba'"):
        assert told in str(error.value)
    with pytest.raises(NotFoundError, match="DRAGOMAN_DATA"):
        find(CorpusConfig(src_path="no.zh", tgt_path="no.en"), "zh", "en", root=None)


def test_the_digest_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    rows = [translation(*pair) for pair in PAIRS[:5]]
    one, same = (write_folder(tmp_path / name, {"train": rows}) for name in ("one", "same"))
    other = write_folder(tmp_path / "other", {"train": rows[:4]})
    assert digest(one) != digest(other)
    assert digest(write_tsv(tmp_path / "a.tsv", PAIRS)) == digest(write_tsv(tmp_path / "b.tsv", PAIRS))
    assert digest(tmp_path / "a.tsv") != digest(tmp_path / "a.tsv", split="test")
    assert same.exists()


def as_nobody(ask: Callable[[], object]) -> str:
    """What somebody is told who may read only what everybody may."""
    mouth, ear = os.pipe()[::-1]
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            if os.getuid() == 0:
                os.setresuid(65534, 65534, 65534)
            ask()
        except BaseException as error:
            os.write(mouth, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(mouth)
    os.waitpid(child, 0)
    with open(ear, "rb") as said:
        return said.read().decode()


@pytest.fixture
def anybodys() -> Iterator[Path]:
    """A folder that everybody may look into; pytest's own are the user's alone."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.parametrize("what", ["file", "folder", "file in a folder", "folder in a folder", "file below"])
def test_a_corpus_that_may_not_be_read_is_told_as_that(what: str, anybodys: Path) -> None:
    folder = write_folder(anybodys / "corpus", {"train": [translation(*PAIRS[0])]})
    file, path = folder / "train.jsonl.gz", folder
    closed = file if what.startswith("file") else folder
    if what in ("file", "file below"):
        path = file
    elif what == "folder in a folder":
        closed = folder / "data"
        closed.mkdir()
    if what == "file below":
        closed = folder
    closed.chmod(0)
    try:
        told = as_nobody(lambda: find(CorpusConfig(path=str(path)), "zh", "en", None))
    finally:
        closed.chmod(0o755)
    at_fault = path if what == "file below" else closed
    assert told == f"UserError: cannot read {at_fault}: Permission denied"


@pytest.mark.parametrize("where", ["path", "src_path", "tgt_path"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_has_no_end_is_refused_at_once(where: str, kind: str, tmp_path: Path) -> None:
    endless = tmp_path / "x.tsv"
    if kind == "pipe":
        os.mkfifo(endless)
    else:
        endless.symlink_to("/dev/zero")
    good = str(write_tsv(tmp_path / "a.tsv", PAIRS[:5]))
    paths = {"src_path": good, "tgt_path": good} if where != "path" else {}
    with pytest.raises(UserError, match=r"x\.tsv is not a regular file"):
        find(CorpusConfig(**paths | {where: str(endless)}), "zh", "en", None)  # type: ignore[arg-type]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is empty"):
        digest(tmp_path)


def test_a_folder_without_known_splits_is_refused_naming_those_it_has(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "corpus", {"train": [translation(*PAIRS[0])]})
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: other\n    path: train.jsonl.gz\n---\n"
    )
    with pytest.raises(UserError, match="has the splits other"):
        find(CorpusConfig(path=str(folder)), "zh", "en", root=None).open()


def test_the_copy_corpus_needs_no_files_and_is_always_the_same() -> None:
    first, second = (
        [
            row
            for rows in find(CorpusConfig(path="copy"), "x", "y", None).open()["train"].chunks
            for row in rows.src
        ]
        for _ in range(2)
    )
    assert first == second
    assert len(first) == 20_000
    assert all(3 <= len(text.split()) <= 15 for text in first)


@pytest.fixture
def answers() -> Iterator[list[int]]:
    """HTTP status codes with which a hub on loopback answers, whatever it is asked."""
    codes = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(codes[0])
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield codes
    server.shutdown()
    server.server_close()


def test_a_hub_that_answers_is_reachable_even_when_it_does_not_know_the_dataset(answers: list[int]) -> None:
    assert hub.unreachable("owner/name") is None
    answers[0] = 404
    assert hub.unreachable("owner/name") is None
    answers[0] = 503
    assert "503" in str(hub.unreachable("owner/name"))


def test_a_hub_that_is_switched_off_is_not_asked(answers: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub.unreachable("owner/name") == "HF_HUB_OFFLINE is set"


def test_a_hub_that_never_answers_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PATIENCE", 1.5)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        assert hub.unreachable("owner/name")
        assert time.monotonic() - start < 3


def test_the_patience_with_the_hub_leaves_room_below_ten_seconds() -> None:
    assert hub.PATIENCE <= 7  # importing `datasets` to look into its cache takes its time too


def test_an_absent_hub_is_told_with_its_address_and_the_places_sought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    with pytest.raises(
        NotFoundError, match=r"http://hub\.invalid.*cannot be reached.*HF_HUB_OFFLINE.*no corpus"
    ):
        find(CorpusConfig(path="owner/name"), "zh", "en", root=None)


@pytest.mark.parametrize(
    ("path", "could_be"),
    [("Helsinki-NLP/opus-100", True), ("a/b/c", False), ("tatoeba", False), ("../x", False), ("/a/b", False)],
)
def test_only_owner_and_name_make_a_dataset_on_the_hub(path: str, could_be: bool) -> None:
    assert hub.is_hub_name(path) is could_be

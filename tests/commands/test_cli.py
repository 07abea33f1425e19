"""The parts that all command lines share."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.commands import cli
from dragoman.config import SearchConfig
from dragoman.errors import UserError

OWN = SearchConfig(beam_size=4, length_penalty=0.8)


def search(command: str) -> SearchConfig:
    parser = cli.Parser("test")
    cli.add_translation_options(parser)
    return cli.search_config(parser.parse_args(command.split()), OWN)


def test_options_change_the_models_own_search() -> None:
    changes: dict[str, dict[str, object]] = {
        "": {},
        "--beam 7": {"beam_size": 7},
        "--n-best 6": {"n_best": 6, "beam_size": 6},
        "--sample --top-k 3 --seed 0": {"kind": "sample", "top_k": 3, "seed": 0},
    }
    for command, changed in changes.items():
        assert vars(search(command)) == vars(OWN) | changed, command


def test_wrong_search_options_are_an_error() -> None:
    messages = {
        "--bea 3": "--bea",
        "--top-k 0": "--top-k, .* only for sampling",
        "--sample --beam 3": "--beam: not allowed with argument --sample",
        "--beam 0": "search.beam_size=0: must be from 1",
    }
    for command, message in messages.items():
        with pytest.raises(UserError, match=message):
            search(command)


def test_lines_are_counted_as_they_are_read(tmp_path: Path) -> None:
    content = b"\r\n\xff\n" + "a\n\n一\u2028二\x0c三".encode()
    (tmp_path / "file").write_bytes(content)
    read = list(cli.read_lines(str(tmp_path / "file")))
    assert [line.strip() for line in read] == ["", "\udcff", "a", "", "一\u2028二\x0c三"]
    assert cli.count_lines(str(tmp_path / "file")) == 5
    pipe, _ = os.pipe()
    assert cli.count_lines(f"/dev/fd/{pipe}") is None  # a pipe that was read has no lines left to translate


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with cli.new_file(str(link), overwrite=True) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_exit_codes(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture) -> None:
    for error, code, message in (
        (UserError("a\nb"), 2, "error: a b\n"),
        (PermissionError(13, "Denied", "x"), 2, "error: x: Denied\n"),
        (OSError(28, "No space left"), 2, "error: output: No space left\n"),
        (BrokenPipeError(), 0, ""),
        (ModuleNotFoundError("no", name="x"), 2, "error: x is not installed. Run `pip install x`\n"),
        (KeyboardInterrupt(), 130, "stopped\n"),
    ):

        @cli.command
        def main(argv: list[str], error: BaseException = error) -> None:
            raise error

        with open(tmp_path / "out", "w") as out:
            monkeypatch.setattr(sys, "stdout", out)
            assert main([]) == code
        assert capsys.readouterr().err == message


@pytest.mark.parametrize(("terminal", "text"), [(False, "10 lines in "), (True, "5/10")])
def test_progress_is_a_bar_and_a_sentence(
    terminal: bool, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with cli.progress_bar(10) as progress:
        progress(5 if terminal else 10)
    err = capsys.readouterr().err
    assert text in err
    assert terminal or err.count("\n") == 1

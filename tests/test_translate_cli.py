"""translate.py as people use it: arguments, pipes, files and exit codes."""

import html
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from doors import Door
from dragoman import bundle as bundles
from dragoman.doors import SEARCH_OPTIONS, Parser, Progress, add_search_options, count_lines, search_config
from dragoman.errors import UserError
from dragoman.search.search import SearchConfig
from tiny import SENTENCES, make_bundle


@pytest.fixture
def door(
    tiny_bundle_folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Door:
    """translate.py in a folder with a model under runs/."""
    return Door("translate.py", tiny_bundle_folder.parents[2], monkeypatch, capfdbinary)


def test_each_argument_is_a_line_whatever_it_holds(door: Door) -> None:
    awkward = ["好久不见", "", " ", "a=b,c#d%e@f", '"it\'s"', "两行\n一句", "😀", "-5", "{x: [1]}"]
    done = door(*awkward)
    lines = done.out.decode().split("\n")
    assert len(lines) == len(awkward) + 1
    assert lines[1] == lines[2] == ""
    assert lines[6] == "😀"
    assert "runs/tiny/bundle (zh-en)" in done.err


def test_stdin_keeps_its_lines_through_everything(door: Door) -> None:
    lines = [
        "好".encode(),
        b"",
        b"\xff\xfe\x80",
        b"a\x00b",
        "一\u2028二\x0c三".encode(),
        b"\r",
        b"no newline",
    ]
    assert door(stdin=b"\n".join(lines)).out.count(b"\n") == len(lines)
    assert door(stdin=b"").out == b""


def test_a_process_mends_invalid_utf8_and_writes_utf8_whatever_the_locale(door: Door) -> None:
    done = door.process(b"\xe5\xa5\xbd\xff", "😀", "--json", capture_output=True)
    assert done.returncode == 0
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()][1] == "😀"


def test_files_in_and_out_with_progress_and_nothing_overwritten(door: Door, tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("\n".join(SENTENCES))
    files = ("--input", str(source), "--output", str(target))
    done = door(*files)
    assert done.out == b""
    assert f"{len(SENTENCES)} lines" in done.err
    translated = target.read_text()
    assert translated.count("\n") == len(SENTENCES)
    assert "--overwrite" in door.refused(*files)
    assert target.read_text() == translated
    door(*files, "--overwrite", "--json")
    assert [json.loads(line)["text"] for line in target.read_text().splitlines()] == translated.splitlines()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_a_file_can_replace_itself(door: Door, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("好久不见\n我爱你\n")
    door("--input", str(file), "--output", str(file), "--overwrite")
    assert file.read_text().count("\n") == 2


def test_json_gives_tokens_and_scores(door: Door) -> None:
    for line in door("好久不见", "我爱你", "--json", "--n-best", "2").out.decode().splitlines():
        found = json.loads(line)
        assert len(found["tokens"]) == len(found["token_scores"]) > 0
        scores = [hypothesis["score"] for hypothesis in found["hypotheses"]]
        assert scores == sorted(scores, reverse=True)
        assert found["text"] == found["hypotheses"][0]["text"]


def test_several_hypotheses_share_their_line(door: Door) -> None:
    lines = door("好久不见", "我爱你", "--beam", "3", "--n-best", "3").out.decode().splitlines()
    assert [line.count("\t") for line in lines] == [2, 2]


def test_attention_is_drawn_for_one_sentence(door: Door, tmp_path: Path) -> None:
    picture = tmp_path / "attention.png"
    door("好久不见", "--attention", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "--overwrite" in door.refused("好久不见", "--attention", str(picture))
    assert "one sentence" in door.refused("好", "久", "--attention", str(tmp_path / "b.png"))


def test_attention_is_a_page_where_the_name_says_so(door: Door, tmp_path: Path) -> None:
    page = tmp_path / "attention.HTML"
    written = door("我爱你 <b>", "--attention", str(page)).out.decode().strip()
    shown = page.read_text()
    assert shown.startswith("<!doctype html>")
    assert "我爱你 &lt;b&gt;" in shown
    assert html.escape(written) in shown
    assert "--overwrite" in door.refused("好久不见", "--attention", str(page))
    door("好久不见", "--attention", str(page), "--overwrite")
    assert "好久不见" in page.read_text()
    for name in ("attention.gif", "attention", "html"):
        complaint = door.refused("好", "--attention", name)
        assert ".png" in complaint
        assert ".html" in complaint


def test_lines_become_vectors_in_a_file_that_numpy_reads(door: Door, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("\n".join([*SENTENCES[:5], ""]) + "\n")
    out = tmp_path / "vectors.npy"
    done = door("--input", str(tmp_path / "in.txt"), "--embed", str(out))
    assert done.out == b""
    assert "5 vectors" not in done.err
    assert "6 vectors of 32 numbers" in done.err
    vectors = np.load(out, allow_pickle=False)
    assert vectors.shape == (6, 32)
    assert vectors.dtype == np.float32
    assert not vectors[5].any()
    assert "--overwrite" in door.refused(*SENTENCES[:2], "--embed", str(out))
    door(*SENTENCES[:2], "--embed", str(out), "--overwrite", "--pooling", "mean")
    np.testing.assert_allclose(np.load(out), vectors[:2], atol=1e-5)
    door(*SENTENCES[:2], "--embed", str(out), "--overwrite", "--pooling", "attention")
    assert not np.allclose(np.load(out), vectors[:2], atol=1e-3)
    door("--embed", str(tmp_path / "none.npy"), stdin=b"")
    assert np.load(tmp_path / "none.npy").shape == (0, 32)


def test_a_refused_embedding_leaves_no_file(door: Door, tmp_path: Path) -> None:
    out = tmp_path / "vectors.npy"
    assert "mean, first, attention" in door.refused("好", "--embed", str(out), "--pooling", "max")
    assert list(tmp_path.iterdir()) == []


def test_every_search_option_is_named_where_embedding_refuses_them() -> None:
    parser = Parser("test", "")
    add_search_options(parser)
    assert set(vars(parser.parse([]))) == set(SEARCH_OPTIONS)


def test_a_model_is_chosen_by_the_direction_of_the_input(door: Door, tmp_path: Path) -> None:
    for name, (src, tgt) in {"zh_en": ("zh", "en"), "en_zh": ("en", "zh"), "smoke": ("zh", "en")}.items():
        bundle = make_bundle(tmp_path / "tokenizer", src=src, tgt=tgt)
        bundles.save(bundle, tmp_path / "runs" / name / "bundle")
    door.home = tmp_path
    assert "runs/zh_en/bundle" in door("好久不见").err
    assert "runs/en_zh/bundle" in door("", "Long time no see").err
    assert "runs/en_zh/bundle" in door(stdin=b"\n\nLong time no see\n").err
    assert "reads 'zh'" in door("Hello", "--model", "runs/zh_en").err


def test_a_model_of_both_directions_follows_the_script_and_can_be_told_otherwise(
    door: Door, tmp_path: Path
) -> None:
    bundles.save(make_bundle(tmp_path / "tokenizer", both=True), tmp_path / "runs" / "both" / "bundle")
    door.home = tmp_path
    asked = (
        "--model",
        "runs/both",
        "--json",
    )  # with scores, which differ where a model without sense repeats itself
    for text, own, other in (("好久不见", "zh_en", "en_zh"), ("Long time no see", "en_zh", "zh_en")):
        by_script = door(text, *asked)
        assert by_script.err == f"model: runs/both ({own.replace('_', '-')})\n"
        assert f"({own.replace('_', '-')})" in door(text).err
        assert door(text, *asked, "--direction", own) == by_script
        against = door(text, *asked, "--direction", other)
        assert against.out != by_script.out
        assert "looks different" in against.err
    assert "(zh-en)" in door(stdin=b"\n\n1984\n" + "一九八四".encode()).err  # one direction for all lines
    assert "choose from zh_en, en_zh" in door.refused("好", *asked, "--direction", "zh_fr")


def test_the_newest_model_of_the_direction_asked_for_is_taken(door: Door, tmp_path: Path) -> None:
    assert "(zh-en)" in door("好", "--direction", "zh_en").err
    assert "choose from zh_en" in door.refused("好", "--model", "runs/tiny", "--direction", "en_zh")
    refused = door.refused("Hello", "--direction", "en_zh")
    assert "no model fits --direction en_zh" in refused
    assert "translates zh_en" in refused


def test_without_a_model_the_command_that_makes_one_is_named(door: Door, tmp_path: Path) -> None:
    door.home = tmp_path
    message = door.refused("好久不见")
    assert "make train" in message
    assert "python train.py experiment=zh_en" in message


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("好", "--beam", "0"), "--beam 0"),
        (("好", "--beam", "2", "--n-best", "3"), "n_best=3"),
        (("好", "--n-best", "0"), "n_best=0"),
        (("好", "--beam", "many"), "--beam"),
        (("好", "--length-penalty", "-inf"), "is written --length-penalty=VALUE"),
        (("好", "--batch", "0"), "--batch 0"),
        (("好", "--temperature", "2"), "--sample"),
        (("好", "--sample", "--beam", "3"), "--sample"),
        (("好", "--sample", "--temperature", "0"), "temperature"),
        (("好", "--sample", "--top-p", "1.5"), "top_p"),
        (("好", "--model", "nowhere"), "nowhere"),
        (("好", "--device", "abacus"), "abacus"),
        (("好", "--input", "file"), "not both"),
        (("--input", "missing.txt"), "missing.txt"),
        (("--input", "."), "cannot read ."),
        (("好", "--output", "no/such/folder/out.txt"), "no/such/folder"),
        (("-五度",), "-- "),
        (("好", "--beem", "5"), "--beem"),
        (("好", "--pooling", "mean"), "--embed"),
        (("好", "--embed", "a.npy", "--beam", "1"), "--beam"),
        (("好", "--embed", "a.npy", "--top-k", "1"), "--top-k"),
        (("好", "--embed", "a.npy", "--json"), "--json"),
        (("好", "--embed", "a.npy", "--output", "b"), "--output"),
        (("好", "--embed", "a.npy", "--attention", "b.png"), "--attention"),
        (("好", "--attention", "a.png", "--output", "./a.png"), "both name"),
        (("好", "--output", ".", "--overwrite"), ". is a folder"),
        (("好", "--embed", "no/such/folder/a.npy"), "no/such/folder"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    door: Door, arguments: tuple[str, ...], complaint: str
) -> None:
    assert complaint in door.refused(*arguments)


def test_a_foreign_folder_is_refused_as_a_model(door: Door, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["MarianMTModel"]}')
    assert "not a bundle of Dragoman" in door.refused("好", "--model", str(tmp_path))


def test_a_failed_run_leaves_no_output_behind(door: Door, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("好\n")
    files = ("--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out"))
    door.refused(*files, "--model", "nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_text_beginning_with_a_dash_goes_after_two(door: Door) -> None:
    assert door("--", "-五度", "--beam").out.count(b"\n") == 2


def test_a_closed_pipe_ends_quietly(door: Door) -> None:
    command = f"yes 好 | head -6000 | {sys.executable} {door.script} --beam 1 | head -1"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", f"{command}; echo ${{PIPESTATUS[2]}}"],
        capture_output=True,
        cwd=door.home,
        timeout=120,
        env=environment,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == b"0"
    assert [line for line in done.stderr.splitlines() if not line.startswith(b"model: ")] == []


def test_a_full_disk_is_one_line(door: Door) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "wb") as full:
        done = door.process("好", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if not line.startswith(b"model: ")] == [
        b"error: cannot write the output: No space left on device"
    ]


def test_a_terminal_without_arguments_gets_usage(door: Door) -> None:
    terminal, end = pty.openpty()
    try:
        done = door.process(stdin=end, capture_output=True)
    finally:
        os.close(terminal)
        os.close(end)
    assert done.returncode == 2
    assert b"usage: translate.py" in done.stderr


def test_help_loads_nothing_heavy(door: Door) -> None:
    command = [sys.executable, "-X", "importtime", str(door.script), "--help"]
    done = subprocess.run(command, capture_output=True, cwd=door.home, timeout=60, check=True)
    assert b"--beam" in done.stdout
    for heavy in (b"torch", b"numpy", b"sacrebleu", b"sentencepiece", b"matplotlib"):
        assert heavy not in done.stderr


def search(*arguments: str) -> SearchConfig:
    parser = Parser("test", "")
    add_search_options(parser)
    return search_config(parser.parse(list(arguments)), SearchConfig(beam_size=4, length_penalty=0.8))


def test_search_options_change_only_what_they_name() -> None:
    assert search() == SearchConfig(beam_size=4, length_penalty=0.8)
    assert search("--beam", "7") == SearchConfig(beam_size=7, length_penalty=0.8)
    assert search("--n-best", "6").beam_size == 6
    sampled = search("--sample", "--top-k", "3", "--seed", "9", "--n-best", "2")
    assert (sampled.kind, sampled.top_k, sampled.seed, sampled.n_best) == ("sample", 3, 9, 2)


def test_options_are_not_guessed_from_their_beginnings() -> None:
    with pytest.raises(UserError, match="--bea"):
        search("--bea", "3")


def test_lines_are_counted_as_they_are_read(tmp_path: Path) -> None:
    for content, expected in [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\n\nb", 3), ("一\u2028二".encode(), 1)]:
        (tmp_path / "f").write_bytes(content)
        assert count_lines(str(tmp_path / "f")) == expected
    assert count_lines("/dev/null") is None


def test_progress_draws_a_bar_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Progress(10)(5)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    Progress(10)(5)
    assert "5/10 lines" in capsys.readouterr().err

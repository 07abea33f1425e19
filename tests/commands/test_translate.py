"""The translating command: arguments, pipes, files and exit codes."""

import html
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dragoman import bundle as bundles
from dragoman.commands.translate import main
from dragoman.languages import Direction

Run = Any  # the fixture `run`

ROOT = Path(__file__).parents[2]


def test_each_argument_is_a_line(run: Run) -> None:
    awkward = ["好久不见", "", " ", "a=b,c#d%e@f", '"it\'s"', "两行\n一句", "😀", "-5", "{x: [1]}"]
    result = run(main, "--", *awkward)
    lines = result.out.split("\n")
    assert len(lines) == len(awkward) + 1
    assert lines[1] == lines[2] == ""
    assert lines[6] == "😀"
    assert "model: runs/golden/bundle (zh_en)" in result.err


def test_a_pipe_keeps_its_lines(run: Run) -> None:
    lines = "好\n\na\0b\n一\u2028二\x0c三\n\r\n".encode() + b"\xff\x80\nno newline"
    assert run(main, stdin=lines).out.count("\n") == 7
    assert "stdin: not UTF-8" in run(main, stdin=b"\xba\xc3\n" * 2, code=2).err
    assert "stdin: not UTF-8" in run(main, stdin=b"\xba\xc3\n" * 10_000, code=2).err


def test_files_in_and_out(run: Run, home: Path) -> None:
    (home / "in.txt").write_text("好久不见\n我爱你。\n\n谢谢。")
    files = ("--input", "in.txt", "--output", "out.txt")
    result = run(main, *files)
    assert result.out == ""
    assert "4 lines" in result.err
    translated = (home / "out.txt").read_text()
    assert translated.count("\n") == 4
    assert "--overwrite" in run(main, *files, code=2).error
    assert (home / "out.txt").read_text() == translated
    run(main, *files, "--overwrite", "--json")
    lines = (home / "out.txt").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == translated.splitlines()
    (home / "in.txt").write_bytes(("好久不见。\n" * 20).encode("gb18030"))
    assert "-f GB18030" in run(main, *files, "--overwrite", code=2).error
    assert sorted(path.name for path in home.iterdir()) == ["in.txt", "out.txt", "runs"]


def test_strict_ends_with_3_after_a_warning(run: Run) -> None:
    run(main, "好久不见", "--strict")
    result = run(main, "好久不见", "See E", "--strict", code=3)
    assert "warning: line 2: characters outside the vocabulary: E" in result.err


def test_json_has_tokens_and_ordered_scores(run: Run) -> None:
    command = ("好久不见", "我爱你", "--n-best", "2")
    texts = [line.split("\t") for line in run(main, *command).out.splitlines()]
    for line, hypotheses in zip(run(main, *command, "--json").out.splitlines(), texts, strict=True):
        record = json.loads(line)
        assert [hypothesis["text"] for hypothesis in record["hypotheses"]] == hypotheses
        assert len(record["tokens"]) == len(record["token_scores"]) > 0
        scores = [hypothesis["score"] for hypothesis in record["hypotheses"]]
        assert scores == sorted(scores, reverse=True)
        assert record["text"] == hypotheses[0]


def test_attention_as_a_picture_and_as_a_page(run: Run, home: Path) -> None:
    run(main, "好久不见", "--attention", "a.png")
    assert (home / "a.png").read_bytes().startswith(b"\x89PNG")
    translation = run(main, "我爱你 <b>", "--attention", "a.HTML").out.strip()
    page = (home / "a.HTML").read_text()
    assert page.startswith("<!doctype html>")
    assert "我爱你 &lt;b&gt;" in page
    assert html.escape(translation) in page


def test_a_trace_as_text_and_as_a_page(run: Run, home: Path) -> None:
    greedy, beam = (run(main, "好久不见", "--trace", "--beam", n).out for n in ("1", "3"))
    assert "step 1\n" in greedy
    assert greedy == run(main, "好久不见", "--trace").out != beam
    run(main, "我爱你 <b>", "--trace", "--output", "t.HTML")
    page = (home / "t.HTML").read_text()
    assert page.startswith("<!doctype html>")
    assert "我爱你 &lt;b&gt;" in page


def test_vectors_of_lines(run: Run, home: Path) -> None:
    lines = ("好久不见", "我爱你", "")
    result = run(main, *lines, "--embed", "v.npy")
    assert (result.out, "3 vectors of 32 numbers" in result.err) == ("", True)
    vectors = np.load(home / "v.npy", allow_pickle=False)
    assert (vectors.shape, vectors.dtype) == ((3, 32), np.float32)
    run(main, *lines, "--embed", "v.npy", "--overwrite", "--pooling", "attention")
    assert not np.allclose(np.load(home / "v.npy"), vectors, atol=1e-3)


def test_the_input_chooses_the_model(run: Run, home: Path) -> None:
    for src, tgt in (("zh", "en"), ("en", "zh")):
        bundle = bundles.load("runs/golden")
        bundle.src, bundle.tgt, bundle.directions = src, tgt, [Direction(src, tgt)]
        bundles.save(bundle, home / "runs" / f"{src}_{tgt}" / "bundle")
    shutil.rmtree(home / "runs" / "golden")
    assert "runs/zh_en/bundle (zh_en)" in run(main, "好久不见").err
    assert "runs/en_zh/bundle (en_zh)" in run(main, stdin=b"\n\nLong time no see\n").err
    assert "(zh_en)" in run(main, stdin=b"\n\n1984\n" + "一九八四".encode()).err
    assert "runs/en_zh/bundle" in run(main, "好", "--direction", "en_zh").err


@pytest.mark.parametrize(("text", "own", "other"), [("好久不见", "zh_en", "en_zh"), ("Hello", "en_zh", "zh_en")])
def test_the_script_chooses_the_direction(run: Run, text: str, own: str, other: str) -> None:
    # With scores, which differ even where the texts do not.
    by_script = run(main, text, "--json")
    assert f"({own})" in by_script.err
    assert run(main, text, "--json", "--direction", own) == by_script
    against = run(main, text, "--json", "--direction", other)
    assert against.out != by_script.out


def test_without_a_run_an_included_model_answers(run: Run, home: Path) -> None:
    shutil.rmtree(home / "runs")
    answer = run(main, "好久不见", "--engine", "torch")
    assert answer.out == "Long time no see\n"
    assert "pretrained/zh_en (zh_en)" in answer.err


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("好 --beam 2 --n-best 3", "n_best=3"),
        ("好 --model nowhere", "nowhere"),
        ("好 --direction zh_fr", "no model for --direction zh_fr"),
        ("好 --input file", "--input"),
        ("好 --output no/such/folder/out.txt", "no/such/folder"),
        ("好 --output runs --overwrite", "name another path"),
        ("-五度", "unrecognized arguments: -五度"),
        ("好 --embed a.npy --pooling max", "mean, first, attention"),
        ("好 --embed a.npy --output a.en", "translates nothing"),
        ("好 --embed a.npy --trace", "--embed"),
        ("好 久 --attention b.png", "one sentence"),
        ("好 --attention a.gif", ".html"),
        ("好 久 --trace", "one sentence"),
        ("好 --trace --output a.png", ".html"),
    ],
)
def test_mistakes_are_one_line(run: Run, home: Path, command: str, part: str) -> None:
    assert part in run(main, *command.split(), code=2).error
    assert [path.name for path in home.iterdir()] == ["runs"]


def test_a_terminal_without_text_gets_one_line(home: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    for arguments, part in (([], "--help"), (["--trace"], "one sentence")):
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert (part in err, err.count("\n")) == (True, 1)


@pytest.mark.slow
def test_a_cold_start_imports_nothing_heavy(home: Path) -> None:
    heavy = {"torch", "numpy", "rich", "sacrebleu", "matplotlib", "hydra"}
    code = "import sys; from dragoman.commands.translate import main; main(['--help']); "
    command = [sys.executable, "-c", f"{code} print({heavy} & set(sys.modules))"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.endswith("set()\n")
    assert "--beam" in out


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly(home: Path) -> None:
    command = f"yes 好 | head -6000 | {sys.executable} {ROOT / 'translate.py'} --beam 1 2> err | head -1"
    subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=home, timeout=120, check=False)
    assert [line for line in (home / "err").read_text().splitlines() if not line.startswith("model: ")] == []

"""The programs in scripts/, called in this process."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gensim.models
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dragoman import bundle as bundles
from dragoman.data.text import SYNTHETIC

SCRIPTS = Path(__file__).parents[2] / "scripts"
Script = Callable[..., Any]


@pytest.fixture
def script(run: Any) -> Script:
    """Run a program: script("NAME ARGUMENTS", code=expected exit code)."""

    def script(command: str, code: int = 0) -> Any:
        name, *arguments = command.split()
        return run(runpy.run_path(str(SCRIPTS / f"{name}.py"))["main"], *arguments, code=code)

    return script


def write(path: Path, *lines: str) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@pytest.fixture(autouse=True)
def corpus(home: Path) -> None:
    """A corpus in one file and in two aligned files, and word vectors."""
    pairs = [("好久不见。", "Long time no see."), ("我爱你。", "I love you."), ("谢谢。", "Thank you.")]
    write(home / "zh.txt", *(zh for zh, _ in pairs))
    write(home / "en.txt", *(en for _, en in pairs))
    write(home / "talk.jsonl", *(json.dumps({"zh": zh, "en": en}) for zh, en in pairs))
    words = ("king 1 1 0", "man 1 0 0", "woman 0 0 1", "queen 0 1 1", "apple -1 0 0")
    write(home / "vectors.txt", "5 3", *words)


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("evaluate --model runs/golden", "zh_en and en_zh"),
        ("evaluate --model runs/golden --direction zh_en", "not a run"),
        ("evaluate --model runs/golden --src zh.txt", "--ref"),
        ("evaluate --model runs/golden --corpus talk.jsonl --src zh.txt --ref en.txt", "not allowed with"),
        ("evaluate --model runs/golden --challenge --output runs", "not an evaluation"),
        ("average --output mean --run runs/golden", "nothing to average"),
        ("average --output mean zh.txt", "no configuration"),
        ("average --output mean runs/golden/bundle zh.txt", "no weights of a model"),
        ("average --output mean --run runs/golden other.safetensors", "another model"),
        ("doctor", "CORPUS: missing"),
        ("export --model runs/golden --to ctranslate", "did you mean 'ctranslate2'"),
        ("export --model nowhere --to ctranslate2", "Name a run"),
        ("back_translate --model runs/golden --input zh.txt --output talk.jsonl", "ends in .tsv"),
        ("export --model runs/golden --to argos --push me/model", "--to huggingface"),
        ("neighbours king", "--vectors --model is required"),
        ("neighbours --vectors vectors.txt qeen", "did you mean 'queen'"),
        ("neighbours --vectors vectors.txt king -", "a word must follow"),
        ("train_word2vec zh_en --output v", "did you mean experiment=zh_en"),
        ("notes wast", "did you mean 'waist'"),
        ("notes waist --out a.png", "one of pe, products, rope, t5, alibi"),
        ("notes pe --out a.gif", "a .html page, or a .png"),
        ("notes --out a.html", "name examples"),
        ("notes waist --language fr", "zh, en"),
    ],
)
def test_mistakes_are_one_line(script: Script, home: Path, command: str, part: str) -> None:
    save_file({"a": torch.zeros(1)}, home / "other.safetensors")
    before = sorted(home.iterdir())
    assert part in script(command, code=2).error
    assert sorted(home.iterdir()) == before


def test_notes_print_and_draw(script: Script, home: Path) -> None:
    assert "57" in script("notes waist").out
    assert {line.split()[0] for line in script("notes").out.splitlines()} >= {"waist", "loop", "alibi"}
    script("notes pe --out a.png")
    assert (home / "a.png").read_bytes().startswith(b"\x89PNG")
    script("notes waist alibi --language zh --out a.html")
    assert (home / "a.html").read_text().count("data:image/png;base64,") == 1
    assert "exists already" in script("notes pe --out a.png", code=2).error


def test_evaluate_measures_a_corpus(script: Script, home: Path) -> None:
    out = script("evaluate --model runs/golden --direction zh_en --corpus talk.jsonl --beam 1").out
    assert [line.split()[0] for line in out.splitlines()] == ["BLEU", "chrF2", "TER", "hypotheses,"]
    folder = home / "runs" / "golden" / "evaluation" / "talk-test-zh_en"
    assert len((folder / "hypotheses.txt").read_text().splitlines()) == 3
    assert json.loads((folder / "scores.json").read_text())["search"]["beam_size"] == 1


def test_back_translation_gives_tagged_pairs(script: Script, home: Path) -> None:
    write(home / "mono.txt", "Long time no see.", "", "2024", "I love you.")
    out = script("back_translate --model runs/golden --input mono.txt --direction en_zh --beam 1").out
    header, *rows = (line.split("\t") for line in (home / "synthetic.tsv").read_text().splitlines())
    assert header == ["zh", "en"]
    assert [tgt for _, tgt in rows] == ["Long time no see.", "I love you."]
    assert all(src.startswith(SYNTHETIC) for src, _ in rows)
    assert "dropped, no letters: 2" in out
    error = script("back_translate --model runs/golden --input mono.txt --direction en_zh", code=2).error
    assert "--overwrite" in error


def test_evaluate_finds_the_direction_of_files(script: Script) -> None:
    out = script("evaluate --model runs/golden --src en.txt --ref zh.txt --ref en.txt --output out").out
    assert "tok:zh" in out
    assert "nrefs:2" in out


@pytest.mark.parametrize(
    ("arguments", "factor"),
    [
        ("--run runs/golden --last 2", 1.5),
        ("--run runs/golden --half", 1.0),
        ("runs/golden/bundle runs/golden/snapshots/step-000000002.safetensors", 1.5),
    ],
)
def test_average_is_the_mean(script: Script, home: Path, arguments: str, factor: float) -> None:
    folder = home / "runs" / "golden"
    weights = {name: p.detach() for name, p in bundles.load(folder).model.named_parameters()}
    (folder / "snapshots").mkdir()
    for k in range(3):
        state = {name: k * weight for name, weight in weights.items()}
        save_file(state, folder / "snapshots" / f"step-{k:09d}.safetensors")
    script(f"average {arguments} --output mean")
    for name, parameter in bundles.load("mean").model.named_parameters():
        assert torch.allclose(parameter, factor * weights[name], atol=1e-2)
    assert "--overwrite" in script(f"average {arguments} --output mean", code=2).error


def test_doctor_writes_a_page_and_json(script: Script, home: Path) -> None:
    assert "doctor_talk.html" in script("doctor talk.jsonl").out
    assert (home / "doctor_talk.html").read_text().startswith("<!doctype html>")
    assert json.loads((home / "doctor_talk.json").read_text())["findings"] == []
    assert "--overwrite" in script("doctor talk.jsonl", code=2).error
    script("doctor --src-path zh.txt --tgt-path en.txt --output aligned.html")
    assert (home / "aligned.json").exists()


def test_export_makes_a_folder_beside_the_weights(script: Script, home: Path) -> None:
    script("export --model runs/golden --to ctranslate2 --sentences zh.txt")
    assert (home / "runs" / "golden" / "bundle" / "ctranslate2").is_dir()


def test_attention_pooling_is_trained_on_a_frozen_encoder(
    script: Script, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The label is the first word; AttentionPooling has three parameters of its own."""
    adamw, sizes = torch.optim.AdamW, []
    monkeypatch.setattr(torch.optim, "AdamW", lambda p, **o: sizes.append(len(p)) or adamw(p, **o))
    words = ("我", "你", "他", "书", "水")
    rows = [f"{first}\t{first}{second}{third}" for first in words[:2] for second in words for third in words[:2]]
    write(home / "labels.tsv", "# label, sentence", *rows)
    before = (home / "runs" / "golden" / "bundle" / "model.safetensors").read_bytes()
    lines = script("train_pooling --model runs/golden --input labels.tsv").out.splitlines()
    shares = {line.split()[0]: float(line.split()[1]) for line in lines[:4]}
    assert list(shares) == ["mean", "first", "attention", "AttentionPooling"]
    assert sizes == [2, 2, 2, 2 + 3]
    assert shares["first"] > 90
    assert shares["AttentionPooling"] > 90
    assert lines[4].startswith("我: 我我我 ")
    assert (home / "runs" / "golden" / "bundle" / "model.safetensors").read_bytes() == before
    write(home / "labels.tsv", *rows[:9])
    assert "at least" in script("train_pooling --model runs/golden --input labels.tsv", code=2).error


def test_neighbours_of_a_sum(script: Script) -> None:
    first, *lines = script("neighbours --vectors vectors.txt king - man + woman --top 2").out.splitlines()
    assert first == "king - man + woman"
    assert lines[0].split()[1] == "queen"
    assert len(lines) == 2


def test_neighbours_in_a_model(script: Script) -> None:
    out = script("neighbours --model runs/golden --side tgt 我 --top 3").out
    cosines = [float(line.split()[0]) for line in out.splitlines()[1:]]
    assert len(cosines) == 3
    assert cosines == sorted(cosines, reverse=True)


@pytest.mark.parametrize(
    ("kind", "sizes", "size"), [("skipgram", "model.d_model=8", 8), ("cbow", "", 256), ("cbow_sum", "--dim 8", 8)]
)
def test_trained_vectors_fit_the_model(
    kind: str, sizes: str, size: int, script: Script, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word2vec, models = gensim.models.Word2Vec, []
    monkeypatch.setattr(gensim.models, "Word2Vec", lambda *a, **o: models.append(word2vec(*a, **o)) or models[0])
    rows = [json.dumps({"zh": f"我有{k}本书。", "en": f"I have {k} books."}) for k in range(100)]
    write(home / "books.jsonl", *rows)
    settings = "data.corpora=[{path:books.jsonl}] data.tokenizer.vocab_size=320"
    out = script(f"train_word2vec {settings} {sizes} --output v.txt --epochs 1 --kind {kind}").out
    assert bool(models[0].sg) == (kind == "skipgram")
    assert models[0].cbow_mean == (kind != "cbow_sum")  # the mean of the context's vectors, or their sum
    header, *lines = (home / "v.txt").read_text().splitlines()
    assert header.split() == [str(len(lines)), str(size)]
    assert f"model.d_model={size} model.embedding.init=v.txt" in out
    assert np.isfinite([float(number) for number in lines[0].split()[1:]]).all()
    assert len(script("neighbours --vectors v.txt books").out.splitlines()) > 1

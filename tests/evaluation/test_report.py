"""Report of a run: a self-contained page, no comparison of different test sets."""

import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dragoman.commands import train
from dragoman.config import Config, TrainingConfig
from dragoman.evaluation.report import advice, leaderboard, page, read

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import report as script

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>"
SOURCES = [*(f"我有{n}本书。" for n in "一二三四五六七八"), "……"]  # attention needs a word
GOOD = [f"I have {n} books." for n in range(1, 10)]


def write_run(folder: Path, bleus: tuple[float, ...] = (10.0, 25.0, 25.1), signature: str = "tok:13a") -> Path:
    """Write a run of three validations, one every ten minutes."""
    history = [
        {"step": 100 * n, "loss": 3 - n / 10, "bleu": bleu, "seconds": 600 * n, "signatures": {"bleu": signature}}
        for n, bleu in enumerate(bleus, 1)
    ]
    metrics = {"best": history[-1], "validations": history, "seconds": 1800, "step": 300, "skipped": 0, "notes": []}
    metrics |= {"recipe": {"model.dropout": 0.2345}, "data": "d", "machine": {"cpu": "a processor", "commit": "abc123"}}
    texts = {"sources": SOURCES, "references": [[text] for text in GOOD], "hypotheses": [*GOOD[:7], HOSTILE, "I have."]}
    cleaning = {"train": {"read": 200_000, "kept": 190_000, "repaired": 5}}
    shutil.copytree(GOLDEN, folder / "bundle")
    for name, content in {"metrics": metrics, "validation": {"zh_en": texts}, "cleaning": cleaning}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    config = Config(name=folder.name, training=TrainingConfig(lr=0.123))
    (folder / "config.yaml").write_text(yaml.safe_dump(dataclasses.asdict(config)))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "mine")


@pytest.fixture(scope="module")
def pages(run: Path) -> dict[str, str]:
    return {language: page(run, language).decode() for language in ("en", "zh")}


def test_page_needs_nothing_but_itself(pages: dict[str, str]) -> None:
    for text in pages.values():
        assert not re.search(r"<(script|link|iframe)|@import|url\(|href=", text)
        assert set(re.findall(r'src="([^"]{22})', text)) == {"data:image/png;base64,"}
        assert text.count("<img") == 3
        assert "default-src 'none'" in text
    assert pages["zh"].count("下一步") == 1


def test_page_holds_the_record_of_the_run(pages: dict[str, str]) -> None:
    parts = "25.10", "tok:13a", "training.lr", "0.123", "0.2345", "a processor", "abc123", "190,000", "cross-attention"
    for part in parts:
        assert part in pages["en"], part
        assert part in pages["zh"], part
    worst = pages["en"].partition("The worst sentences")[2]
    assert worst.index("alert(1)") < worst.index("I have.")
    assert GOOD[0] not in worst


def test_advice_follows_the_numbers(run: Path) -> None:
    record = read(run)
    assert not any(advice(record).values())
    history, cleaning = record["metrics"]["validations"], record["cleaning"]
    history[-1] |= {"bleu": 30.0, "loss": 3.5}
    cleaning["train"]["kept"] = 5_000
    assert all(advice(record).values())


def test_unlike_scores_have_columns_of_their_own(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", (21.0, 31.0, 36.0))
    other = write_run(tmp_path / "other", signature="tok:zh")
    texts = (changed := write_run(tmp_path / "changed")) / "validation.json"
    texts.write_text(texts.read_text().replace("I have 3", "I've got 3"))
    rows, notes = leaderboard([a, b, other, changed], [20, 30, 40])
    assert [row.get("validation bleu") for row in rows] == ["36.00", "25.10", None, None]
    times = [[row.get(f"validation bleu: minutes to {level}") for level in (20, 30, 40)] for row in rows[:2]]
    assert times == [["10.0", "20.0", None], ["20.0", None, None]]
    assert ["validation bleu [2]" in row for row in rows] == [False, False, True, False]
    assert [row["signature"] for row in rows] == ["tok:13a", "tok:13a", "tok:zh", "tok:13a"]
    assert len(notes) == 3


def test_a_level_of_the_start_of_an_adaptation_needs_no_time(tmp_path: Path) -> None:
    metrics = json.loads((path := write_run(tmp_path / "a") / "metrics.json").read_text())
    metrics["validations"].insert(0, {"step": 0, "loss": 3.0, "bleu": 21.0})
    path.write_text(json.dumps(metrics))
    ((row,), _) = leaderboard([tmp_path / "a"], [20, 25])
    assert row["validation bleu: minutes to 20"] == "0.0"
    assert row["validation bleu: minutes to 25"] == "20.0"


def test_the_script_writes_and_checks(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([str(tmp_path)]) == 2
    assert "metrics.json is missing" in capsys.readouterr().err
    (file := tmp_path / "table.html").write_text("mine")
    assert script.main([str(run), str(run) + "/../mine", "--html", str(file)]) == 2
    assert file.read_text() == "mine"
    assert script.main([str(run), "--language", "fr"]) == 2
    assert not (run / "report.html").exists()


def test_a_failed_report_is_one_line(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    train.report(tmp_path)
    assert capsys.readouterr().err.startswith("no report: UserError: ")
    run = write_run(tmp_path / "mine")
    with monkeypatch.context() as patch:
        patch.setattr("dragoman.evaluation.scores.challenge", len)  # takes other arguments
        train.report(run)
    assert capsys.readouterr().err.startswith("no report: TypeError: ")
    monkeypatch.setattr("dragoman.evaluation.report.page", lambda run: b"page")
    train.report(run)
    assert (run / "report.html").read_bytes() == b"page"
    assert (run / "evaluation" / "challenge-zh_en" / "challenge.json").is_file()

import gzip
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from doors import Door
from dragoman import bundle as bundles
from dragoman import evaluation
from dragoman.bundle import Bundle
from dragoman.languages import Direction
from tiny import SENTENCES, make_bundle

CHINESE, ENGLISH = SENTENCES[:5], SENTENCES[5:]


@pytest.fixture
def home(tiny_bundle: Bundle, tmp_path: Path) -> Path:
    """A folder with a run that has a bundle, a corpus of two references here and there, and plain files."""
    bundles.save(tiny_bundle, tmp_path / "runs" / "tiny" / "bundle")
    rows = [
        {"translation": {"zh": zh, "en": en}, "references": [en, *extra]}
        for zh, en, extra in zip(
            CHINESE, ENGLISH, [["It's been ages."], [], [], ["Fine day."], []], strict=True
        )
    ]
    (tmp_path / "corpus").mkdir()
    with gzip.open(tmp_path / "corpus" / "test.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "zh.txt").write_text("\n".join(CHINESE) + "\n")
    (tmp_path / "en.txt").write_text("\n".join(ENGLISH) + "\n")
    return tmp_path


@pytest.fixture
def evaluate(home: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Door:
    return Door("scripts/evaluate.py", home, monkeypatch, capfdbinary)


@pytest.fixture
def average(home: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Door:
    return Door("scripts/average.py", home, monkeypatch, capfdbinary)


def by_the_command_line(folder: Path, check: str) -> dict[str, float]:
    """What the recorded sacrebleu command gives, to six digits."""
    command = [sys.executable, "-m", *shlex.split(check), "-w", "6"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return {entry["name"]: entry["score"] for entry in json.loads(done.stdout)}


def test_the_sacrebleu_command_gives_the_numbers_of_a_corpus_with_ragged_references(
    evaluate: Door, home: Path
) -> None:
    done = evaluate("--model", "runs/tiny", "--corpus", "corpus", "--beam", "1")
    folder = home / "runs" / "tiny" / "evaluation" / "corpus-test"
    record = json.loads((folder / "scores.json").read_text())
    theirs = by_the_command_line(folder, record["check"])
    assert len(theirs) == 3
    for score in record["scores"].values():
        assert theirs[score["name"]] == pytest.approx(score["score"], abs=1e-5)
        assert score["signature"] in done.out.decode()
        assert "nrefs:2" in score["signature"]
    assert len((folder / "hypotheses.txt").read_text().splitlines()) == len(CHINESE)
    evaluate("--model", "runs/tiny", "--corpus", "corpus", "--beam", "2")  # once more replaces the first
    assert json.loads((folder / "scores.json").read_text())["search"]["beam_size"] == 2


def test_chinese_is_scored_with_the_tokenizer_for_chinese(evaluate: Door, home: Path) -> None:
    bundles.save(make_bundle(home / "tokenizer", src="en", tgt="zh"), home / "runs" / "en_zh" / "bundle")
    done = evaluate("--model", "runs/en_zh", "--src", "en.txt", "--ref", "zh.txt", "--output", "out")
    assert "tok:zh" in done.out.decode()
    record = json.loads((home / "out" / "scores.json").read_text())
    theirs = by_the_command_line(home / "out", record["check"])
    for score in record["scores"].values():
        assert theirs[score["name"]] == pytest.approx(score["score"], abs=1e-5)


def test_references_of_the_other_side_are_not_taken_for_references(evaluate: Door, home: Path) -> None:
    bundles.save(make_bundle(home / "tokenizer", src="en", tgt="zh"), home / "runs" / "en_zh" / "bundle")
    assert "nrefs:1" in evaluate("--model", "runs/en_zh", "--corpus", "corpus").out.decode()


def test_a_model_of_both_directions_is_measured_in_the_one_that_is_named(evaluate: Door, home: Path) -> None:
    bundles.save(make_bundle(home / "tokenizer", both=True), home / "runs" / "both" / "bundle")
    asked = ("--model", "runs/both", "--beam", "1")
    assert "translates zh_en and en_zh" in evaluate.refused(*asked, "--corpus", "corpus")
    assert "choose from zh_en, en_zh" in evaluate.refused(
        *asked, "--corpus", "corpus", "--direction", "zh_fr"
    )
    for direction, tokens, references, sources in (("zh_en", "13a", 2, CHINESE), ("en_zh", "zh", 1, ENGLISH)):
        out = evaluate(*asked, "--corpus", "corpus", "--direction", direction).out.decode()
        assert f"tok:{tokens}" in out
        assert f"nrefs:{references}" in out
        folder = home / "runs" / "both" / "evaluation" / f"corpus-test-{direction}"
        assert (folder / "source.txt").read_text().splitlines() == sources
        assert json.loads((folder / "scores.json").read_text())["direction"] == direction
    done = evaluate(*asked, "--src", "en.txt", "--ref", "zh.txt")  # plain lines say themselves what they are
    assert "tok:zh" in done.out.decode()


def test_a_model_of_one_direction_accepts_its_own(evaluate: Door, home: Path) -> None:
    asked = ("--model", "runs/tiny", "--corpus", "corpus", "--beam", "1")
    assert evaluate(*asked, "--direction", "zh_en").out == evaluate(*asked).out
    assert "choose from zh_en" in evaluate.refused(*asked, "--direction", "en_zh")


def test_several_reference_files_are_several_references(evaluate: Door) -> None:
    done = evaluate("--model", "runs/tiny", "--src", "zh.txt", "--ref", "en.txt", "--ref", "en.txt")
    assert "nrefs:2" in done.out.decode()


def test_a_run_is_measured_on_the_split_it_kept_aside(evaluate: Door, home: Path) -> None:
    with gzip.open(home / "corpus" / "train.jsonl.gz", "wt") as file:
        for k in range(300):
            pair = {"zh": f"我有{k}本书，你有{k + 1}本。", "en": f"I have {k} books and you have {k + 1}."}
            file.write(json.dumps({"translation": pair, "references": [pair["en"]]}) + "\n")
    configuration = {"seed": 1, "data": {"corpora": [{"path": "corpus"}], "cache": "cache"}}
    configuration["data"]["tokenizer"] = {"vocab_size": 330}  # type: ignore[index]
    (home / "runs" / "tiny" / "config.yaml").write_text(json.dumps(configuration))  # JSON is YAML
    done = evaluate("--model", "runs/tiny")
    assert done.out.decode().startswith("BLEU ")
    hypotheses = home / "runs" / "tiny" / "evaluation" / "test" / "hypotheses.txt"
    assert len(hypotheses.read_text().splitlines()) == len(CHINESE)
    backwards = evaluation.split_of_run(home / "runs" / "tiny", "test", Direction("en", "zh"))
    forwards = evaluation.split_of_run(home / "runs" / "tiny", "test", Direction("zh", "en"))
    assert backwards.sources == [references[0] for references in forwards.references] == ENGLISH
    assert backwards.references == [(source,) for source in forwards.sources]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "not a run"),
        (("--src", "zh.txt"), "--ref"),
        (("--src", "zh.txt", "--ref", "missing.txt"), "missing.txt"),
        (("--src", "zh.txt", "--ref", "short.txt"), "5 lines"),
        (("--corpus", "nowhere"), "nowhere"),
        (("--corpus", "corpus", "--split", "tset"), "did you mean 'test'"),
        (("--corpus", "corpus", "--split", "train"), "no split 'train'"),
        (("--corpus", "corpus", "--src", "zh.txt", "--ref", "en.txt"), "not both"),
        (("--corpus", "corpus", "--n-best", "3"), "--n-best"),
        (("--corpus", "corpus", "--output", "."), "holds no evaluation"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    evaluate: Door, home: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    (home / "short.txt").write_text("\n".join(ENGLISH[:3]) + "\n")
    assert complaint in evaluate.refused("--model", "runs/tiny", *arguments)


def snapshots(run: Path, tiny_bundle: Bundle) -> list[dict[str, torch.Tensor]]:
    """Three states of the weights, saved as training saves them; the last in a checkpoint, too."""
    states = [
        {name: parameter.detach() * factor for name, parameter in tiny_bundle.model.named_parameters()}
        for factor in (0.0, 1.0, 2.0)
    ]
    (run / "snapshots").mkdir(parents=True)
    for step, state in enumerate(states):
        save_file(state, run / "snapshots" / f"step-{step:09d}.safetensors")
    torch.save({"state_dict": {f"model.{k}": v for k, v in states[-1].items()}}, run / "last.ckpt")
    return states


def test_averaging_the_last_snapshots_gives_their_mean(
    average: Door, home: Path, tiny_bundle: Bundle
) -> None:
    states = snapshots(home / "runs" / "tiny", tiny_bundle)
    average("--run", "runs/tiny", "--last", "2", "--output", "mean")
    for name, parameter in bundles.load(home / "mean").model.named_parameters():
        assert torch.allclose(parameter, 1.5 * states[1][name])
    assert "--overwrite" in average.refused("--run", "runs/tiny", "--output", "mean")
    average("--run", "runs/tiny", "--last", "3", "--output", "mean", "--overwrite", "--half")
    for name, parameter in bundles.load(home / "mean").model.named_parameters():
        assert torch.allclose(parameter, states[1][name], atol=1e-2)


def test_bundles_and_checkpoints_are_averaged_too(average: Door, home: Path, tiny_bundle: Bundle) -> None:
    states = snapshots(home / "runs" / "tiny", tiny_bundle)
    average("runs/tiny/bundle", "runs/tiny/last.ckpt", "--output", "mean")
    for name, parameter in bundles.load(home / "mean").model.named_parameters():
        assert torch.allclose(parameter, 1.5 * states[1][name])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "nothing to average"),
        (("--run", "runs/tiny"), "no snapshots"),
        (("--run", "runs/tiny", "--last", "0"), "--last 0"),
        (("zh.txt",), "which model"),
        (("runs/tiny/bundle", "zh.txt"), "not a checkpoint"),
        (("runs/tiny/bundle", "other.safetensors"), "another model"),
    ],
)
def test_what_cannot_be_averaged_is_one_line(
    average: Door, home: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    save_file({"a": torch.zeros(1)}, home / "other.safetensors")
    assert complaint in average.refused(*arguments, "--output", "mean")
    assert not (home / "mean").exists()

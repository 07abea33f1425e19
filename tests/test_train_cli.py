"""The training door, as a user meets it: what is refused, in which words, and how soon.

Refusals come from `config.check` and `fit`, which are asked here directly, where torch is loaded already; a few
processes of their own show that train.py says the same on stderr and leaves with exit code 2.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from doors import Door
from dragoman.config import Config, check
from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import DataConfig
from dragoman.doors import open_door
from dragoman.errors import UserError
from dragoman.experiments import choices, settings
from dragoman.training.fit import TrainerConfig, fit
from dragoman.training.signals import Stopped

ROOT = Path(__file__).parents[1]


def train(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def refusal(done: "subprocess.CompletedProcess[str]") -> str:
    """The one line with which train.py refused."""
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


REFUSED = {
    "training.lrr=1": ("no setting 'training.lrr'", "did you mean 'training.lr'"),
    "optimiser=adam": ("no setting 'optimiser'",),
    "preflight=maybe": ("preflight", "maybe"),
    "+x=1": ("no setting 'x'",),
    "++model.colour=red": ("no setting 'model.colour'",),
    "data.corpora=[{path: a, nam: b}]": ("did you mean 'name'",),
    "data.corpora=[{path: a, repeat: 0}]": ("repeat", "1 or more"),
    "data.corpora=phrasebook": ("data.corpora",),
    "data.corpora=[": ("cannot read 'data.corpora=['",),
    "model=smal": ("no model 'smal'", "did you mean 'small'", "base, big, small, tiny"),
    "model=null": ("no model 'null'", "base, big, small, tiny"),
    "+model=tiny": ("model=", "without '+'"),
    "data=opus": ("no data 'opus'", "did you mean 'opus100'"),
    "trainer=cup": ("no trainer 'cup'", "did you mean 'cpu'"),
    "trainer.max_steps=many": ("trainer.max_steps", "many", "Integer"),
    "trainer.max_steps=1.5": ("trainer.max_steps", "1.5"),
    "training.lr=nan": ("training.lr=nan", "finite"),
    "model.position.base=inf": ("model.position.base=inf",),
    "trainer.max_steps=0": ("trainer.max_steps=0", "at least 1"),
    "trainer.max_time=10m": ("trainer.max_time=10m", "00:00:10:00"),
    "trainer.max_time=00:00:00:00": ("trainer.max_time", "at least a second"),
    "trainer.accelerator=tpuu": ("trainer.accelerator=tpuu", "auto, cpu, gpu, mps"),
    "trainer.strategy=dpp": ("trainer.strategy=dpp", "did you mean 'ddp'"),
    "trainer.precision=64": ("trainer.precision=64", "fp16"),
    "training.lr=high": ("training.lr", "high", "Float"),
    "training.lr=null": ("training.lr",),
    "training.schedule=cosin": ("training.schedule=cosin", "did you mean 'cosine'"),
    "training.label_smoothing=1": ("training.label_smoothing", "below 1"),
    "model.n_heads=3": ("model.n_heads=3", "divide model.d_model=256", "1, 2, 4, 8, 16"),
    "model.d_model=0": ("model.d_model=0",),
    "model.dropout=1.5": ("model.dropout=1.5",),
    "model.score=adittive": ("model.score=adittive", "did you mean 'additive'", "scaled_dot, dot, additive"),
    "model.normalization=rms": ("model.normalization=rms", "layer_norm, rms_norm"),
    "model.position.kind=transformerxl": ("did you mean 'transformer_xl'", "none, integer, unit, sinusoidal"),
    "model.position.base=1": ("model.position.base=1.0", "greater than 1"),
    "model.position.n_buckets=6": ("model.position.n_buckets=6", "multiple of 4"),
    "data.tokenizer.kind=bep": ("data.tokenizer.kind", "did you mean 'bpe'"),
    "data.tokenizer.vocab_size=10": ("data.tokenizer.vocab_size", "at least"),
    "data.src=en": ("data.src and data.tgt",),
    "data.directions=[zh_fr]": ("data.directions", "'zh_fr'", "choose from zh_en, en_zh"),
    "data.directions=zh_en": ("data.directions",),
    "data.directions=[en_zh]": ("data.directions is en_zh alone", "src=en, tgt=zh"),
    "data.directions=[zh_en,zh_en]": ("data.directions names zh_en twice",),
    "data.max_tokens=100": ("data.max_tokens is 100", "data.max_length"),
    "search.kind=beem": ("search.kind=beem", "did you mean 'beam'"),
    "search.beam_size=0": ("search.beam_size=0", "from 1 to 1,000"),
    "name=a/b": ("name=a/b", "folder"),
    "seed=-1": ("seed=-1", "at least 0"),
}


@pytest.mark.parametrize(("setting", "told"), REFUSED.items(), ids=list(REFUSED))
def test_a_setting_that_cannot_be_is_refused_in_one_line(setting: str, told: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        check(settings([setting]))
    message = str(error.value)
    assert "\n" not in message
    for part in told:
        assert part in message


def test_parts_that_contradict_each_other_are_refused_naming_both() -> None:
    with pytest.raises(UserError, match=r"model\.tie=all.*data\.tokenizer\.vocabulary=joint"):
        check(["model.tie=all", "data.tokenizer.vocabulary=separate"])
    for kind in ("learned", "unit"):
        with pytest.raises(UserError, match=rf"model\.position\.length=100: {kind} .*data\.max_length=100"):
            check([f"model.position.kind={kind}", "model.position.length=100", "data.max_length=100"])
        check([f"model.position.kind={kind}", "model.position.length=101", "data.max_length=100"])
    with pytest.raises(UserError, match=r"model\.position\.kind=rope.*heads of 3: change n_heads"):
        check(["model.position.kind=rope", "model.d_model=12", "model.n_heads=4"])


@pytest.mark.parametrize("experiment", choices())
def test_every_experiment_that_is_carried_along_can_be_composed(experiment: str) -> None:
    check([f"experiment={experiment}", "trainer.max_time=00:00:10:00"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["experiment=zhen"], ("no experiment 'zhen'", "did you mean 'zh_en'", "copy, de_en")),
        (["experiment="], ("no experiment ''",)),
        (["zh_en"], ("'zh_en' is not a setting", "did you mean experiment=zh_en")),
        (["--experiment", "zh_en"], ("no option '--experiment'", "experiment=...")),
        (["--model.d_model=64"], ("no option '--model.d_model'", "write model.d_model=64")),
        (["-m", "seed=1,2"], ("no option '-m'",)),
    ],
)
def test_words_that_are_no_settings_are_refused(arguments: list[str], told: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        settings(arguments)
    for part in told:
        assert part in str(error.value)


def test_options_of_hydra_are_not_taken_for_settings() -> None:
    assert settings(["--cfg", "job", "experiment=copy", "-p", "model", "--resolve"]) == ["experiment=copy"]


def test_a_mistyped_experiment_is_refused_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    begin = time.monotonic()
    line = refusal(train("experiment=tatoba_zh_en", folder=tmp_path))
    assert time.monotonic() - begin < 2
    assert "did you mean 'tatoeba_zh_en'" in line
    assert not list(tmp_path.iterdir())


def test_a_mistyped_key_is_refused_by_the_door_and_leaves_nothing(tmp_path: Path) -> None:
    line = refusal(train("experiment=smoke", "training.warmup=3", folder=tmp_path))
    assert "did you mean 'training.warmup_steps'" in line
    assert not list(tmp_path.iterdir())


def test_the_door_prints_every_setting_and_its_value(tmp_path: Path) -> None:
    done = train("experiment=copy", "trainer.max_steps=7", "--cfg", "job", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = yaml.safe_load(done.stdout)
    assert printed["trainer"]["max_steps"] == 7
    assert printed["model"]["dropout"] == 0.0  # of the experiment
    assert printed["search"]["length_penalty"] == 1.0  # of the dataclass
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_door_says_what_a_run_costs_and_begins_none(tmp_path: Path) -> None:
    done = train("experiment=copy", "preflight=true", "data.max_tokens=256", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "preflight of runs/copy" in done.stdout
    assert "peak memory" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_an_unreadable_corpus_ends_the_door_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.zh").write_text("好。\n早。\n晚。\n", encoding="utf-8")
    (tmp_path / "a.en").write_text("Good.\nEarly.\n", encoding="utf-8")
    corpus = "data.corpora=[{src_path: a.zh, tgt_path: a.en}]"
    line = refusal(train(corpus, "trainer.accelerator=cpu", folder=tmp_path))
    for told in ("a.zh", "a.en", "3", "2"):
        assert told in line


def run(folder: Path, *corpora: CorpusConfig, trainer: TrainerConfig | None = None) -> Config:
    return Config(
        run_dir=str(folder / "run"),
        data=DataConfig(corpora=list(corpora), cache=str(folder / "cache")),
        trainer=trainer or TrainerConfig(accelerator="cpu"),
    )


def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not a run of ours"):
        fit(run(tmp_path, CorpusConfig(path="copy")))
    (tmp_path / "run" / "thesis.txt").unlink()
    (tmp_path / "run").rmdir()
    (tmp_path / "run").write_text("a file")
    with pytest.raises(UserError, match="is a file"):
        fit(run(tmp_path, CorpusConfig(path="copy")))
    assert (tmp_path / "run").read_text() == "a file"


def test_a_missing_corpus_is_refused_naming_where_it_was_sought(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no corpus 'tatoba'.*there is no .*tatoba"):
        fit(run(tmp_path, CorpusConfig(path="tatoba")))


def test_a_corpus_without_the_columns_asked_for_is_refused_naming_those_it_has(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"chinese": "好。", "english": "Good."}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"zh.*chinese, english"):
        fit(run(tmp_path, CorpusConfig(path=str(tmp_path / "a.jsonl"))))


def test_hardware_that_is_not_there_is_refused_before_the_corpus_is_read(tmp_path: Path) -> None:
    here = torch.cuda.device_count()
    trainer = TrainerConfig(accelerator="gpu", devices=here + 1)
    with pytest.raises(UserError, match=r"trainer\.(accelerator|devices)="):
        fit(run(tmp_path, CorpusConfig(path="copy"), trainer=trainer))
    assert not (tmp_path / "cache").exists()


def test_a_run_refused_for_its_corpus_can_be_begun_anew_with_another(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no corpus"):
        fit(run(tmp_path, CorpusConfig(path="tatoba")))
    with pytest.raises(UserError, match="no corpus 'other'"):
        fit(run(tmp_path, CorpusConfig(path="other")))


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_door_leaves_with_the_code_of_the_signal_that_stopped_the_run(
    signum: int,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    def stopped(config: Config) -> None:
        raise Stopped(signum, Path("last.ckpt"))

    monkeypatch.setattr("dragoman.training.fit.fit", stopped)
    done = Door("train.py", tmp_path, monkeypatch, capsysbinary)("experiment=smoke", code=code)
    assert done.err == "stopped and saved in last.ckpt; the same command goes on from there\n"
    assert not list(tmp_path.iterdir())


def test_ctrl_c_ends_any_door_with_a_word_and_the_same_code(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as left:
        open_door(main)
    assert left.value.code == 130
    assert capsysbinary.readouterr() == (b"", b"stopped\n")

"""The training command, without training: the fit is replaced."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dragoman.commands.train import completions, main
from dragoman.config import Config

Run = Any  # the fixture `run`


class Stopped(BaseException):
    signum, path = signal.SIGTERM, Path("last.ckpt")


def replace(monkeypatch: pytest.MonkeyPatch, fit: Any, preflight: Any = None) -> None:
    module = SimpleNamespace(fit=fit, Stopped=Stopped, preflight=preflight)
    monkeypatch.setitem(sys.modules, "dragoman.training.fit", module)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, list[str]]]:
    """Started runs with their command lines; each writes metrics.json."""
    runs: list[tuple[Config, list[str]]] = []

    def fit(config: Config) -> None:
        runs.append((config, sys.argv[1:]))
        folder = Path(config.run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        best = {"step": 7, "loss": 1.5, "bleu": 10.0 * len(runs), "signature": "x"}
        (folder / "metrics.json").write_text(json.dumps({"seconds": 3500.0, "best": best}))

    replace(monkeypatch, fit)
    return runs


def test_preflight_estimates_and_trains_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    estimated: list[Config] = []
    replace(monkeypatch, None, estimated.append)
    run(main, "experiment=smoke", "preflight=true")
    assert [config.name for config in estimated] == ["smoke"]


def test_a_signal_decides_the_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(config: Config) -> None:
        raise Stopped

    replace(monkeypatch, fit)
    assert run(main, code=143).err == "stopped, saved in last.ckpt; the same command resumes\n"


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("experiment=zhen", "did you mean 'zh_en'"),
        ("zh_en", "zh_en: not a setting (did you mean experiment=zh_en?)"),
        ("my.tsv}]", "in quotes if it has spaces: data.corpora='[{path: my.tsv}]'"),
        ("--model.d_model=64", "--model.d_model=64: not a setting. Write settings as key=value"),
        ("--cfg hydra", "job"),
        ("-m training.lr=1e-3,oops", "oops"),
    ],
)
def test_mistakes_are_one_line(run: Run, fits: list[Any], command: str, part: str) -> None:
    assert part in run(main, *command.split(), code=2).error
    assert not fits


def test_cfg_prints_every_setting_and_its_value(run: Run, fits: list[Any]) -> None:
    printed = yaml.safe_load(run(main, "experiment=copy", "trainer.max_steps=7", "--cfg", "job").out)
    assert printed["trainer"]["max_steps"] == 7
    # of the experiment, and of the dataclass
    assert (printed["model"]["dropout"], printed["search"]["length_penalty"]) == (0.0, 1.0)
    assert not fits


def test_help_names_the_experiments(run: Run) -> None:
    assert "experiment: adapt, both, copy" in run(main, "--help").out


def test_tab_offers_groups_settings_and_choices(run: Run) -> None:
    def leaves(tree: dict[str, Any], prefix: str = "") -> set[str]:
        parts = [leaves(v, f"{prefix}{k}.") if isinstance(v, dict) else {f"{prefix}{k}="} for k, v in tree.items()]
        return set().union(*parts)

    groups = {"experiment=", "data=", "recipe=", "model=", "training=", "trainer=", "search="}
    assert set(completions("")) == groups | leaves(yaml.safe_load(run(main, "--cfg", "job").out))
    for setting, values in {"recipe": "auto none", "data.leak": "pair sentence", "preflight": "true false"}.items():
        assert completions(f"{setting}=") == [f"{setting}={value}" for value in values.split()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "word"),
    [("train experiment=smoke training.lab", "training.label_smoothing="), ("translate --be", "--beam ")],
)
def test_tab_trains_and_translates_nothing(line: str, word: str, home: Path) -> None:
    pytest.importorskip("argcomplete")
    tab = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": "out"}
    code = f"from dragoman.commands.{line.split()[0]} import main; main([])"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **tab}, check=True)
    assert (home / "out").read_text() == word
    assert os.listdir("runs") == ["golden"]


def test_a_sweep_ends_in_a_table(run: Run, fits: list[Any]) -> None:
    result = run(main, "experiment=smoke", "-m", "training.lr=1e-3,2e-3")
    assert [config.training.lr for config, _ in fits] == [1e-3, 2e-3]
    rows = [line for line in result.out.splitlines() if "smoke_lr=" in line]
    assert ["10" in rows[0], "20" in rows[1], "3,500" in rows[0]] == [True, True, True]
    # The command line of each run gives this run alone.
    run(main, *fits[1][1])
    assert fits[2] == fits[1]


@pytest.mark.parametrize(
    ("swept", "names"),
    [
        ("model=tiny,small", ["dragoman_model=tiny", "dragoman_model=small"]),
        ("experiment=smoke,copy", ["smoke", "copy"]),
        ("data.directions=[],[zh_en]", ["dragoman_directions=-", "dragoman_directions=-zh_en-"]),
    ],
)
def test_names_of_swept_runs(run: Run, fits: list[Any], swept: str, names: list[str]) -> None:
    run(main, "--multirun", swept)
    assert [config.name for config, _ in fits] == names


@pytest.mark.slow
def test_a_training_begins_without_libraries_it_may_not_need() -> None:
    later = {"torchmetrics", "matplotlib", "scipy", "transformers", "pandas", "datasets", "sacrebleu", "ctranslate2"}
    code = "import sys; from dragoman.commands.train import main; main(['training.optimizer=none']); "
    command = [sys.executable, "-c", f"{code} print('lightning' in sys.modules, {later} & set(sys.modules))"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True set()\n"

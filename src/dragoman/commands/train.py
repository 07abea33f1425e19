"""Train a translation model: dragoman-train experiment=zh_en key=value ...

In a checkout: python train.py ...

Every setting and its value:            --cfg job
Time and memory, without training:      preflight=true
A run for each value, one by one:       -m training.lr=1e-3,2e-3
The same command resumes a run that was stopped.
"""

import contextlib
import gc
import json
import os
import sys
from pathlib import Path
from types import ModuleType

from omegaconf import OmegaConf

import dragoman
from dragoman import files
from dragoman.commands import cli
from dragoman.compose import GROUPS, compose, setting_choices, sweep
from dragoman.config import Config
from dragoman.errors import UserError


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__)
    parser.usage = "%(prog)s [options] experiment=NAME key=value ..."
    parser.epilog = "\n".join(f"{group}: {', '.join(names)}" for group, names in GROUPS.items())
    settings = parser.add_argument("settings", nargs="*", help="key=value: a file of a group below, or one setting")
    settings.completer = completions  # type: ignore[attr-defined]  # of argcomplete
    parser.add_argument("-c", "--cfg", choices=["job"], help="print every setting and its value")
    parser.add_argument("-m", "--multirun", action="store_true", help="a run for each value of key=a,b")
    parser.add_argument("--version", action="version", version=dragoman.__version__)
    return parser


def completions(prefix: str, **_: object) -> list[str]:
    """Return groups and keys, or after "=" the choices of one setting."""
    choices = GROUPS | setting_choices(Config())
    key, equals, _value = prefix.partition("=")
    return [f"{key}={value}" for value in choices.get(key, ())] if equals else [f"{key}=" for key in choices]


def check_settings(words: list[str]) -> list[str]:
    """Return `words`, all of which are settings. Raises UserError for another word."""
    for word in words:
        if word.startswith("-") or "=" not in word:
            hint = f" (did you mean experiment={word}?)" if word in GROUPS["experiment"] else ""
            quotes = ", in quotes if it has spaces: data.corpora='[{path: my.tsv}]'" if word[-1:] in ("]", "}") else ""
            raise UserError(f"{word}: not a setting{hint}. Write settings as key=value{quotes}")
    return words


@cli.command
def main(argv: list[str]) -> None:
    args, others = parser().parse_known_args(argv)
    overrides = check_settings([*args.settings, *others])
    runs = sweep(overrides) if args.multirun else [overrides]
    # Every run of a sweep is checked before the first one starts.
    configs = [compose(run) for run in runs]
    if args.cfg:
        print("---\n".join(map(OmegaConf.to_yaml, configs)), end="")
        return
    for run, config in zip(runs, configs, strict=True):
        train(run, config)
    if args.multirun and not configs[0].preflight:
        summarise(configs)


def train(overrides: list[str], config: Config) -> None:
    """Train one run, or estimate its cost; signal n gives exit code 128 + n."""
    import_lightning()
    from torch import distributed

    from dragoman.training.fit import Stopped, fit, preflight
    from dragoman.training.run import is_first

    # Lightning starts the other processes of a run on several devices with this command line.
    sys.argv = [sys.argv[0], *overrides]
    environment = dict(os.environ)
    try:
        (preflight if config.preflight else fit)(config)
    except Stopped as stopped:
        if is_first():
            saved = f"saved in {stopped.path}" if stopped.path else "without saving"
            print(f"stopped, {saved}; the same command resumes", file=sys.stderr)
        sys.exit(128 + stopped.signum)
    # The next run of --multirun starts its own processes: it needs the environment of before.
    if distributed.is_initialized():
        distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(environment)
    if is_first() and not config.preflight:
        report(Path(config.run_dir))


def import_lightning() -> None:
    """Import Lightning without garbage collection and without torchmetrics.

    Lightning compares the type of each logged value with two classes of torchmetrics; Dragoman logs no such values. The
    real module would also import matplotlib and, if installed, scipy and transformers.
    """
    if sys.modules.keys() & {"lightning", "torchmetrics"}:
        return
    # Imports make many objects and no garbage.
    gc.disable()
    from torch.nn import Module

    stand_in, metric = ModuleType("torchmetrics"), type("Metric", (Module,), {})
    stand_in.__dict__.update(Metric=metric, MetricCollection=metric)
    sys.modules["torchmetrics"] = stand_in
    # For a version of Lightning that uses more of torchmetrics, the next import finds the real one.
    with contextlib.suppress(ImportError):
        import lightning.pytorch  # noqa: F401
    del sys.modules["torchmetrics"]
    gc.freeze()
    gc.enable()


def report(run: Path) -> None:
    """Write the report of a finished run; if that fails, print one line."""
    try:
        from dragoman.evaluation.report import page
        from dragoman.evaluation.scores import challenge
        from dragoman.translation.translator import Translator

        translator = Translator.load(run)
        for direction in map(str, translator.bundle.directions):
            if (path := files.included(f"data/challenge/{direction}.tsv")).is_file():
                challenge(translator, path, run / "evaluation" / f"challenge-{direction}", direction=direction)
        files.write(run / "report.html", page(run))
        print(f"report: {run / 'report.html'} (open it in a browser)")
    except Exception as error:  # any error, because the trained model is already saved
        print(f"no report: {type(error).__name__}: {error}".splitlines()[0], file=sys.stderr)


def summarise(configs: list[Config]) -> None:
    """Print a table of the runs with the scores of their best validation."""
    from rich.console import Console
    from rich.table import Table

    metrics = *configs[0].trainer.metrics, configs[0].training.monitor
    columns = list(dict.fromkeys(["step", "loss", *metrics, "seconds"]))
    table = Table("name", *columns)
    for config in configs:
        record = json.loads(Path(config.run_dir, "metrics.json").read_text(encoding="utf-8"))
        scores = record["best"] | {"seconds": record["seconds"]}
        table.add_row(config.name, *(f"{round(scores[name], 4):,}" if name in scores else "" for name in columns))
    Console().print(table)

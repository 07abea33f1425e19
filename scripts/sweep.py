"""Tune settings: python scripts/sweep.py experiment=copy --space s.yaml --trials 9

The file gives each setting its values, or the ends of a range (int, or float; log: true for a logarithmic scale):

    training.lr: {low: 1e-4, high: 1e-2, log: true}
    model.d_model: [128, 256]

A trial is a run, runs/NAME/trial-N. After five complete trials, one ends early (is pruned) if its best score is worse
than their median at the same step. A failed trial counts as one of N. The same command resumes.
"""

import itertools
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError

from dragoman.commands import cli
from dragoman.commands.train import check_settings
from dragoman.compose import compose
from dragoman.errors import UserError
from dragoman.metrics import LOWER_IS_BETTER


@cli.command
def main(argv: list[str]) -> None:
    parser = cli.Parser(__doc__)
    parser.usage = "%(prog)s experiment=NAME key=value ... --space FILE --trials N"
    parser.add_argument("--space", required=True, metavar="FILE", help="YAML: the values of each setting")
    parser.add_argument("--trials", type=int, required=True, metavar="N", help="trials in all, failed ones included")
    args, words = parser.parse_known_args(argv)
    import optuna
    from optuna.trial import TrialState

    base = check_settings(words)
    config, space = compose(base), read_space(Path(args.space))
    for key, (first, _) in space.items():
        compose([*base, f"{key}={first}"])  # raises UserError
    folder, monitor = Path("runs") / config.name, config.training.monitor
    folder.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=f"sqlite:///{folder}/sweep.db",
        study_name="sweep",
        direction="minimize" if monitor == "loss" or monitor.split("_")[0] in LOWER_IS_BETTER else "maximize",
        load_if_exists=True,
    )
    # Another seed at every start, or a resumed sweep would draw the values of its first trials again.
    study.sampler = optuna.samplers.TPESampler(seed=config.seed + len(study.trials))
    # Optuna has no public way to resume a trial.
    stopped = [optuna.Trial(study, trial._trial_id) for trial in study.get_trials(states=[TrialState.RUNNING])]

    def ask() -> optuna.Trial:
        try:
            return study.ask({key: distribution for key, (_, distribution) in space.items()})
        except ValueError as error:  # Optuna cannot change a list of choices
            study.tell(len(study.trials) - 1, state=TrialState.FAIL)
            raise UserError(f"{args.space}: not the search space of {folder}. Choose another name=...") from error

    new = (ask() for _ in range(args.trials - len(study.trials)))
    for trial in itertools.chain(stopped, new):
        values = [f"{key}={value}" for key, value in trial.params.items()]
        run = folder / f"trial-{trial.number}"
        print(f"{run}: {' '.join(values)}", flush=True)
        try:
            score = train(trial, [*base, *values, f"name={config.name}-{run.name}", f"run_dir={run}"], monitor)
        except Exception as error:
            state = TrialState.PRUNED if isinstance(error, optuna.TrialPruned) else TrialState.FAIL
            print(f"trial {trial.number}: {state.name.lower()}: {error}", file=sys.stderr)
            study.tell(trial, state=state)
        else:
            study.tell(trial, score)
    table = study.trials_dataframe(("number", "state", "value", "params"))
    table = table.rename(columns=lambda name: monitor if name == "value" else name.removeprefix("params_"))
    print(table.to_string(index=False, float_format="%.5g", na_rep=""))
    if study.get_trials(states=[TrialState.COMPLETE]):
        best = [*base, *(f"{key}={value}" for key, value in study.best_params.items()), f"name={config.name}-best"]
        print(f"the best: python train.py {shlex.join(best)}")


def read_space(path: Path) -> dict[str, tuple[Any, Any]]:
    """Return each setting's first value and Optuna distribution. Raises UserError."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    distributions: dict[str, tuple[Any, Any]] = {}
    try:
        space: Any = OmegaConf.to_container(OmegaConf.load(path))  # PyYAML would read 1e-4 as text
        for key, values in space.items():
            if isinstance(values, list):
                choices = ["null" if value is None else value for value in values]  # as on the command line
                distributions[key] = choices[0], CategoricalDistribution(choices)
            else:
                kind = FloatDistribution if float in map(type, values.values()) else IntDistribution
                distributions[key] = values["low"], kind(**values)
    except (AttributeError, LookupError, TypeError, ValueError, YAMLError):
        raise UserError(f"{path}: not a search space. Write 'key: [values]' or 'key: {{low: X, high: Y}}'") from None
    return distributions


def train(trial: Any, settings: list[str], monitor: str) -> float:
    """Train one run, report each validation, and return the best score."""
    import optuna
    from lightning.pytorch.loggers.logger import DummyLogger

    from dragoman.training.fit import Stopped, fit
    from dragoman.training.progress import LOGGERS

    class Report(DummyLogger):
        def log_metrics(self, metrics: Any, step: Any = 0) -> None:
            if (score := metrics.get(f"validation/{monitor}")) is not None:
                trial.report(score, step)
                if trial.should_prune():
                    raise optuna.TrialPruned(f"worse than half of the others at step {step}")

    LOGGERS["sweep"] = lambda run_dir, step: Report()
    config = compose(settings)
    config.trainer.loggers.append("sweep")
    try:
        bundle = fit(config)
    except Stopped as stopped:
        sys.exit(128 + stopped.signum)
    return json.loads((bundle.parent / "metrics.json").read_text(encoding="utf-8"))["best"][monitor]


if __name__ == "__main__":
    sys.exit(main())

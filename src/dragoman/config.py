"""The whole configuration as one typed tree, and the way from Hydra to it.

Hydra composes values from configs/ and the command line; this tree names every key there is and its default; each
part checks itself. Nothing is ever instantiated from a file, and experiments may be somebody else's: what they could
do beside giving values is refused. Hydra's own settings can name classes that it calls before a run begins; YAML's
aliases can blow a page up to gigabytes; OmegaConf's resolvers, `${oc.env:NAME}`, can carry secrets into a model.
"""

import dataclasses
import math
import re
from dataclasses import dataclass, field
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dragoman.data.datamodule import DataConfig
from dragoman.errors import UserError, suggest
from dragoman.experiments import CONFIGS, choices
from dragoman.model.shape import ModelConfig
from dragoman.search.search import SearchConfig
from dragoman.training.module import TrainingConfig
from dragoman.training.trainer import TrainerConfig
from dragoman.untrusted import read_yaml, refuse_resolvers


@dataclass(kw_only=True)
class Config:
    """One run: its name, its seed, and everything that decides its result."""

    name: str = "dragoman"
    seed: int = 1
    run_dir: str = "runs/${name}"
    preflight: bool = False  # instead of a run: say what it will cost, and leave no trace of having asked
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise UserError(f"name={self.name}: use letters, digits, '_', '-' and '.' (it names a folder)")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed={self.seed}: must be at least 0 and below 2**32")
        if self.model.tie == "all" and self.data.tokenizer.vocabulary != "joint":
            raise UserError(
                "model.tie=all needs one vocabulary for both sides: set data.tokenizer.vocabulary=joint "
                "or model.tie=tgt"
            )
        limit, longest = self.model.position.limit, self.data.longest
        if limit is not None and longest > limit:
            raise UserError(
                f"model.position.length={limit}: {self.model.position.kind} positions end there, but data.max_length="
                f"{self.data.max_length} pieces and their marks take {longest}; raise the one or lower the other"
            )


ConfigStore.instance().store(name="schema", node=Config)


def to_config(composed: DictConfig) -> Config:
    """Hydra's answer -> the checked tree."""
    try:
        # Merged anew: `+key=value` adds keys to what Hydra composed, and the tree has no room for them.
        values = OmegaConf.to_container(composed)
        refuse_resolvers(values)
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), values))
    except OmegaConfBaseException as error:
        raise UserError(_in_one_line(error)) from None
    assert isinstance(config, Config)
    _refuse_infinite(dataclasses.asdict(config))
    return config


def _refuse_infinite(tree: dict[str, Any], prefix: str = "") -> None:
    """nan and inf are numbers to YAML; no setting means anything by them, and comparisons let nan through."""
    for key, value in tree.items():
        if isinstance(value, dict):
            _refuse_infinite(value, f"{prefix}{key}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{prefix}{key}={value}: must be a finite number")


def check(overrides: list[str]) -> Config:
    """Compose once to see whether it can be done, and say what is wrong in one line if not."""
    for path in CONFIGS.rglob("*.yaml"):  # whichever of them Hydra will open
        read_yaml(path)
    try:
        with initialize_config_dir(str(CONFIGS.resolve()), version_base="1.3"):
            composed = compose("train", overrides=overrides, return_hydra_config=True)
            ours = compose("train", return_hydra_config=True)
        if _hydra(composed) != _hydra(ours):
            raise UserError(
                "settings of Hydra's own (hydra.*) cannot be changed, neither here nor in an experiment"
            )
        OmegaConf.set_struct(composed, False)
        del composed["hydra"]
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_in_one_line(error)) from None
    except ValueError:  # Hydra's answer to model=null
        group = next(word for word in overrides if word.endswith("=null")).removesuffix("=null")
        raise UserError(f"there is no {group} 'null'; there are {', '.join(choices(group))}") from None
    return to_config(composed)


def _hydra(composed: DictConfig) -> dict[Any, Any]:
    """What Hydra is told about itself, but for the words of the command line.

    Nor the job's name: Lightning starts the other processes of a run with this command and a name for each.
    """
    told = OmegaConf.to_container(composed.hydra)
    assert isinstance(told, dict)
    del told["job"]["override_dirname"], told["job"]["name"]
    return {key: value for key, value in told.items() if key not in ("overrides", "runtime")}


def _keys(node: object, prefix: str = "") -> list[str]:
    """Every dotted key of the tree."""
    if not isinstance(node, DictConfig):
        return [prefix]
    names = [str(name) for name in node]
    return [k for name in names for k in _keys(node._get_node(name), f"{prefix}.{name}" if prefix else name)]


def _in_one_line(error: Exception) -> str:
    """Hydra's and OmegaConf's messages, which run over many lines, as one that names the key."""
    while error.__cause__ is not None and isinstance(
        error.__cause__, HydraException | OmegaConfBaseException
    ):
        error = error.__cause__
    text = str(error)
    no_key = re.search(
        r"Could not override '([\w.\[\]]+)'|Key '([\w.]+)' (?:is )?not in|Could not find '([\w.]+)'", text
    )
    full_key = re.search(r"full_key: (\S+)", text)
    group = re.search(r"Could not find '(\w+)/([^']*)'", text)
    twice = re.match(r"Multiple values for (\w+)", text)
    if isinstance(error, OverrideParseException):
        return f"cannot read '{error.override}': {text.splitlines()[0]}"
    if twice:
        return f"{twice.group(1)} has a value already: write {twice.group(1)}=... once, and without '+'"
    if group:
        kind, wrong = group.groups()
        known = choices(kind)
        return f"there is no {kind} '{wrong}'{suggest(wrong, known)}; there are {', '.join(known)}"
    if no_key:
        tree = OmegaConf.structured(Config)
        wrong = full_key.group(1) if full_key else next(found for found in no_key.groups() if found)
        return (
            f"there is no setting '{wrong}'{suggest(wrong, [*tree, *_keys(tree)])}; "
            "`python train.py --cfg job` prints them all"
        )
    first = text.splitlines()[0]
    return f"{full_key.group(1)}: {first}" if full_key and full_key.group(1) not in first else first

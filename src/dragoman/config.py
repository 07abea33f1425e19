"""The whole configuration as one typed tree, and the way from Hydra to it.

Hydra composes values from configs/ and the command line; this tree names every key there is and its default; each
part checks itself. Nothing is ever instantiated from a file.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dragoman.data.datamodule import DataConfig
from dragoman.errors import UserError, suggest
from dragoman.model.transformer import ModelConfig
from dragoman.search.search import SearchConfig
from dragoman.training.fit import TrainerConfig
from dragoman.training.module import TrainingConfig

CONFIGS = Path(__file__).parents[2] / "configs"


@dataclass(kw_only=True)
class Config:
    """One run: its name, its seed, and everything that decides its result."""

    name: str = "dragoman"
    seed: int = 1
    run_dir: str = "runs/${name}"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise UserError(f"name={self.name}: use letters, digits, '_', '-' and '.' (it names a folder)")
        if self.model.tie == "all" and self.data.tokenizer.vocabulary != "joint":
            raise UserError(
                "model.tie=all needs one vocabulary for both sides: set data.tokenizer.vocabulary=joint "
                "or model.tie=tgt"
            )


ConfigStore.instance().store(name="schema", node=Config)


def to_config(composed: DictConfig) -> Config:
    """Hydra's answer -> the checked tree."""
    try:
        config = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise UserError(_in_one_line(error)) from None
    assert isinstance(config, Config)
    return config


def check(overrides: list[str]) -> None:
    """Compose once just to see whether it can be done, and say what is wrong in one line if not."""
    unknown = _unknown_experiment(overrides)
    if unknown:
        raise UserError(unknown)
    try:
        with initialize_config_dir(str(CONFIGS.resolve()), version_base="1.3"):
            composed = compose("train", overrides=overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_in_one_line(error)) from None
    to_config(composed)


def _unknown_experiment(overrides: list[str]) -> str | None:
    known = sorted(p.stem for p in (CONFIGS / "experiment").glob("*.yaml"))
    for override in overrides:
        key, _, value = override.partition("=")
        if key.strip("+") == "experiment" and value not in known:
            return f"there is no experiment '{value}'{suggest(value, known)}; there are {', '.join(known)}"
    return None


def _keys(node: object, prefix: str = "") -> list[str]:
    """Every dotted key of the tree."""
    if not isinstance(node, DictConfig):
        return [prefix]
    names = [str(name) for name in node]
    return [k for name in names for k in _keys(node._get_node(name), f"{prefix}.{name}" if prefix else name)]


def _in_one_line(error: Exception) -> str:
    cause = error.__cause__ or error
    text = str(error) if "Could not override" not in str(error) else f"{error} {cause}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    message = " ".join(
        line for line in lines if not line.startswith(("full_key:", "object_type=", "reference_type="))
    )
    found = re.search(r"Could not override '([\w.\[\]]+)'", message)
    full_key = re.search(r"full_key: (\S+)", text)
    if "not in struct" in message or "not in 'Config'" in message or "not in '" in message:
        wrong = found.group(1) if found else (full_key.group(1) if full_key else "")
        keys = _keys(OmegaConf.structured(Config))
        return f"there is no setting '{wrong}'{suggest(wrong, keys)}; `python train.py --cfg job` prints them all"
    if full_key and full_key.group(1) not in message:
        message += f" (at {full_key.group(1)})"
    return message

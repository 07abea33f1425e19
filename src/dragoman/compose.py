"""Composition of configs/ and the command line into a checked Config, by Hydra.

Hydra composes values; nothing is instantiated from a file, and Hydra's own settings (hydra.*) cannot be changed.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dragoman.config import Config
from dragoman.errors import UserError, suggest
from dragoman.files import shipped

CONFIGS = shipped("configs")
ConfigStore.instance().store(name="schema", node=Config)


def choices(group: str = "experiment") -> list[str]:
    """Names of the files of a group in configs/, without suffixes."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def compose(overrides: list[str]) -> Config:
    """Compose configs/train.yaml with `overrides` (key=value), or raise UserError."""
    for override in overrides:
        key = re.split("[=+~]", override.lstrip("+~"))[0]
        if key.split(".")[0].split("@")[0].split("/")[0] == "hydra":
            raise UserError(f"{override}: settings of Hydra itself cannot be changed")
    try:
        with initialize_config_dir(str(CONFIGS.resolve()), version_base="1.3"):
            composed = hydra_compose("train", overrides=overrides)
        # Merged once more into the schema: `+key=value` adds keys that Config does not have.
        tree = OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.to_container(composed))
        config = OmegaConf.to_object(tree)
    # ValueError: model=null
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(_explain(error, overrides)) from None
    assert isinstance(config, Config)
    return config


def sweep(overrides: list[str]) -> list[list[str]]:
    """Return the runs of `--multirun`: the product of all values `key=a,b`."""
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise UserError(_explain(error, overrides)) from None
    values = [
        [f"{o.get_key_element()}={value}" for value in _swept(o)] if o.is_sweep_override() else [text]
        for o, text in zip(parsed, overrides, strict=True)
    ]
    return [list(combination) for combination in itertools.product(*values)]


def _swept(override: Override) -> list[str]:
    """Return the values of `key=a,b` as written: "1e-3", not Hydra's "0.001"."""
    parsed = list(override.sweep_string_iterator())
    written = (override.input_line or "").partition("=")[2].split(",")
    simple = getattr(override.value(), "simple_form", False) and len(written) == len(parsed)
    return written if simple else parsed


def to_yaml(config: Config) -> str:
    """Return every setting and its value as YAML."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def _keys(tree: dict[Any, Any], prefix: str = "") -> Iterator[str]:
    """Every key of the tree: data, data.src ..."""
    for key, value in tree.items():
        yield f"{prefix}{key}"
        yield from _keys(value, f"{prefix}{key}.") if isinstance(value, dict) else ()


def _explain(error: Exception, overrides: list[str]) -> str:
    """Return an error of Hydra or OmegaConf as one line with the key and the choices."""
    while isinstance(error.__cause__, HydraException | OmegaConfBaseException):
        error = error.__cause__
    text = str(error)
    missing_file = re.search(r"Could not find '(\w+)/([^']*)'", text)
    missing_key = re.search(r"Could not override '([\w.]+)'|Key '(\w+)' (?:is )?not in|Could not find '([\w.]+)'", text)
    full_key = re.search(r"full_key: (\S+)", text)
    if missing_file:
        group, wrong = missing_file.groups()
        known = choices(group)
        return f"there is no {group} '{wrong}'{suggest(wrong, known)}; there are {', '.join(known)}"
    if missing_key:
        wrong = full_key[1] if full_key else next(filter(None, missing_key.groups()))
        known = list(_keys(dataclasses.asdict(Config())))
        return f"there is no setting '{wrong}'{suggest(wrong, known)}; train.py --cfg job prints them all"
    where = full_key[1] if full_key else " ".join(overrides)
    return f"{where}: {text.splitlines()[0]}"

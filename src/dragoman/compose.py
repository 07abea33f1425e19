"""Composition of configs/ and the command line into a checked Config, by Hydra.

Hydra composes values; nothing is instantiated from a file, and Hydra's own settings (hydra.*) have no effect.
"""

import dataclasses
import itertools
import re
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from dragoman.config import Config, CorpusConfig, Section
from dragoman.errors import UserError, suggest
from dragoman.files import included

CONFIGS = included("configs")
# The groups of configs/, and the names of their files.
GROUPS = {folder.name: sorted(path.stem for path in folder.glob("*.yaml")) for folder in sorted(CONFIGS.glob("*/"))}
# Part of an error of Hydra or OmegaConf -> what a user would do about it.
_HINTS = {
    "ListConfig": "is a list. Write '[a,b]'; corpora: '[{path: my.tsv}]'",
    "Ambiguous value": "has several values. Add -m for a run with each, or write a list: '[a,b]'",
    "LexerNoViableAlt": "cannot be read. Write the path without ~; quote spaces and Chinese: '[{path: \"语料.tsv\"}]'",
    "subclass of CorpusConfig": "write each corpus as in '[{path: my.tsv}]'",
}
ConfigStore.instance().store(name="schema", node=Config)


def compose(overrides: list[str]) -> Config:
    """Compose configs/train.yaml with `overrides` (key=value), or raise UserError."""
    try:
        with initialize_config_dir(str(CONFIGS.resolve()), version_base="1.3"):
            composed = hydra_compose("train", overrides=overrides)
        # The schema is applied to the result, because `+key=value` adds keys that Config does not have.
        tree = OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.to_container(composed))
        config: Any = OmegaConf.to_object(tree)
    except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: model=null
        raise UserError(_explain(error, overrides)) from None
    return config


def sweep(overrides: list[str]) -> list[list[str]]:
    """Return the settings of each run of --multirun, named by its values."""
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
        swept = {each.get_key_element(): [*each.sweep_string_iterator()] for each in parsed if each.is_sweep_override()}
    except HydraException as error:
        raise UserError(_explain(error, overrides)) from None
    fixed = [text for each, text in zip(parsed, overrides, strict=True) if not each.is_sweep_override()]
    omitted = {"name"} if any(text.startswith("name=") for text in fixed) else {"name", "experiment"}
    runs = []
    for values in itertools.product(*swept.values()):
        settings = dict(zip(swept, values, strict=True))
        run = [*fixed, *(f"{key}={value}" for key, value in settings.items())]
        parts = [f"{key.split('.')[-1]}={value}" for key, value in settings.items() if key not in omitted]
        name = re.sub(r"[^\w.=-]+", "-", "_".join([compose(run).name, *parts]))
        runs.append([*run, f"name='{name}'"])
    return runs


def setting_choices(section: Section, prefix: str = "") -> dict[str, list[str]]:
    """Return the choices of each setting; numbers and texts have none."""
    choices: dict[str, list[str]] = {}
    for setting in dataclasses.fields(section):
        key, value = f"{prefix}{setting.name}", getattr(section, setting.name)
        if isinstance(value, Section):
            choices |= setting_choices(value, f"{key}.")
        else:
            choices[key] = ["true", "false"] if isinstance(value, bool) else list(setting.metadata.get("choices", ()))
    return choices


def _explain(error: Exception, overrides: list[str]) -> str:
    """Return an error of Hydra or OmegaConf as one line with the key and the choices."""
    while isinstance(error.__cause__, HydraException | OmegaConfBaseException):
        error = error.__cause__
    if isinstance(error, MissingConfigException):
        group, _, wrong = str(error.missing_cfg_file).partition("/")
        known = GROUPS.get(group, [])
        return f"{group}={wrong}: choose one of {', '.join(known)}{suggest(wrong, known)}"
    key = getattr(error, "full_key", None) or " ".join(overrides)
    for part, message in _HINTS.items():
        if part in str(error):
            return f"{key}: {message}"
    if isinstance(error, ConfigKeyError | ConfigAttributeError):
        known = [*GROUPS, *setting_choices(Config())]
        if error.object_type is CorpusConfig:
            return f"data.corpora: a corpus has no '{key}'. data/README.md, Formats, lists its settings, such as path"
        return f"{key}: not a setting{suggest(key, known)}. List them: train.py --cfg job"
    return f"{key}: {str(error).splitlines()[0]}"

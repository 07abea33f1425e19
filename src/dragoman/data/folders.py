"""A folder laid out like a dataset on the hub: which of its files are the training, validation and test split.

Knows: the names by which splits are told there (train-00000-of-00001.parquet, data/dev.jsonl.gz, test/a.tsv), and the
`configs` at the head of a README.md. Whatever these say, only files of the folder itself that can be seen in it are
read: a folder may come from a stranger, and its README may name anything on this machine or on the network.
Refuses to know: what is in the files.
"""

import os
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any

from dragoman.data.corpus import ALIASES, SPLITS
from dragoman.data.readers import FORMATS, PACKINGS, kind_of, regular
from dragoman.errors import UserError
from dragoman.untrusted import plain_yaml

_NAMES = {
    "train": "train|training", "validation": "validation|valid|dev|val", "test": "test|testing|eval|evaluation",
}  # fmt: skip
_SAYS = {split: re.compile(f"(?:^|[-._ 0-9])(?:{names})(?:[-._ 0-9]|$)") for split, names in _NAMES.items()}
# Of these a split must not be missed.
_FOREIGN = (".csv", ".json", ".ndjson", ".arrow", ".zip", ".tar", ".tgz")
_HEAD = re.compile(r"\s*---[ \t]*\r?\n(.*?)\n---[ \t]*\r?(?:\n|$)", re.DOTALL)
_MOST_HEAD = 2**20  # characters of a README.md that are looked at


def files(folder: Path) -> list[Path]:
    """The files that can be seen in a folder and below it, in order. Links to folders are not followed."""

    def refuse(error: OSError) -> None:
        raise UserError(f"cannot read {error.filename}: {error.strerror}")

    found: list[Path] = []
    for place, below, names in os.walk(folder, onerror=refuse):
        below[:] = [name for name in below if not name.startswith(".")]
        found += (Path(place, name) for name in names if not name.startswith("."))
    home = folder.resolve()
    for file in found:
        if not regular(file).resolve().is_relative_to(home):
            raise UserError(
                f"{file} is a link that leads out of the corpus folder: put the file itself there"
            )
    if not found:
        raise UserError(f"the corpus folder {folder} is empty")
    return sorted(found)


def splits(folder: Path, found: list[Path], name: str | None) -> dict[str, list[Path]]:
    """Of `found` the files of each split, in the configuration `name` where the README.md has several."""
    config = _config(folder, found, name)
    base = folder / str(config.get("data_dir") or "")
    data = [
        file for file in found if file.is_relative_to(base) and (kind_of(file) or file.suffix in _FOREIGN)
    ]
    by_name = {file.relative_to(base).as_posix(): file for file in data}
    if "data_files" in config:
        named = _as_named(folder / "README.md", config["data_files"], by_name)
    else:
        named = _by_layout(by_name)
    if not named:
        raise UserError(
            f"the corpus folder {base} holds no {' '.join(FORMATS)} file (packed {' '.join(PACKINGS)} or not)"
        )
    told = {ALIASES.get(split, split): [by_name[name] for name in names] for split, names in named.items()}
    if not told.keys() & set(SPLITS):
        raise UserError(
            f"{folder} has the splits {', '.join(told)}; at least one of {', '.join(SPLITS)} is needed"
        )
    return {split: told[split] for split in told if split in SPLITS}


def _by_layout(names: Iterable[str]) -> dict[str, list[str]]:
    """By what the names of folders say of splits, or else those of files; where none says anything all is train."""
    paths = [PurePath(name) for name in names]
    for own in (False, True):
        found: dict[str, list[str]] = {}
        for path in paths:
            parts = [path.name] if own else path.parent.parts
            for split, says in _SAYS.items():
                if any(map(says.search, parts)):
                    found.setdefault(split, []).append(path.as_posix())
        if found:
            return found
    readable = [path.as_posix() for path in paths if kind_of(path)]
    return {"train": readable} if readable else {}


def _as_named(readme: Path, data_files: Any, names: Iterable[str]) -> dict[str, list[str]]:
    """By the patterns of a README.md: one, a list of them, or a list of a `path` (or several) for each `split`."""
    entries = data_files if isinstance(data_files, list) else [data_files]
    found: dict[str, list[str]] = {}
    for entry in entries:
        split, path = (entry.get("split"), entry.get("path")) if isinstance(entry, dict) else ("train", entry)
        for pattern in path if isinstance(path, list) else [path]:
            parts = str(pattern).removeprefix("./").split("/")
            its = [name for name in names if _fits(name.split("/"), parts)]
            if not its:
                raise UserError(
                    f"{readme}: its configs name '{pattern}', which is no {' '.join(FORMATS)} file that can be seen in "
                    "the folder, and no other is read"
                )
            found.setdefault(str(split), []).extend(name for name in its if name not in found[str(split)])
    return found


def _fits(name: list[str], pattern: list[str]) -> bool:
    """Whether a path is one that the pattern means: * and ? stay within a name, ** is any number of folders.

    Step by step, and not by one regular expression: one of a stranger's could take for ever.
    """
    at = {0}  # how much of the pattern may be used up
    for part in [*name, None]:
        for i, wanted in enumerate(pattern):
            if i in at and wanted == "**":
                at.add(i + 1)
        if part is not None:
            open_ = {i for i in at if i < len(pattern)}
            at = {i for i in open_ if pattern[i] == "**"}
            at |= {i + 1 for i in open_ if pattern[i] != "**" and fnmatchcase(part, pattern[i])}
    return len(pattern) in at


def _config(folder: Path, found: list[Path], name: str | None) -> dict[str, Any]:
    """The configuration `name` of the README.md, or its default one; an empty one where there are none."""
    readme = folder / "README.md"
    configs = _head(readme).get("configs") if readme in found else None
    if not configs:
        if name:
            raise UserError(f"{folder} has no configuration '{name}': leave out the name of the corpus")
        return {}
    if not isinstance(configs, list) or not all(isinstance(config, dict) for config in configs):
        raise UserError(f"{readme}: its configs are not a list of objects, as a dataset on the hub has them")
    for config in configs:
        called = config.get("config_name", "default")
        default = len(configs) == 1 or called == "default" or config.get("default") is True
        if called == name if name else default:
            return config
    names = ", ".join(str(config.get("config_name")) for config in configs)[:500]
    raise UserError(f"{readme} has the configurations {names}: name one of them, as name of the corpus")


def _head(readme: Path) -> dict[str, Any]:
    """The YAML between two lines of three dashes with which a README.md begins; empty where it does not."""
    try:
        with readme.open(encoding="utf-8", errors="replace") as file:
            head = _HEAD.match(file.read(_MOST_HEAD))
    except OSError as error:
        raise UserError(f"cannot read {readme}: {error.strerror}") from error
    values = plain_yaml(head[1] if head else "", f"{readme}: its head is not YAML")
    return values if isinstance(values, dict) else {}

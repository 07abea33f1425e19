"""Datasets on the Hugging Face hub, and local folders laid out like them.

The hub is probed first, so that training without a network starts within seconds instead of after a library's
retries. In a folder only local files are read, whatever its README.md names, and no code of it is run.
"""

import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from dragoman.data.text import ALIASES, SPLITS
from dragoman.errors import UserError, choose

if TYPE_CHECKING:
    import datasets

T = TypeVar("T")
# Seconds for an answer of any kind. The resolution of a name can take longer than the timeout of a socket.
PATIENCE = 6.0


def is_hub_name(path: str) -> bool:
    """Whether `path` has the form owner/name."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path) is not None


def load(path: str, name: str | None = None) -> "dict[str, datasets.Dataset]":
    """Return the splits of a dataset: from the hub, or from its cache where the hub cannot be reached."""
    reason = unreachable(path)
    import datasets  # takes seconds

    datasets.config.HF_HUB_OFFLINE = reason is not None
    try:
        splits = datasets.load_dataset(path, name)
    except Exception as error:  # the library raises a dozen kinds
        label = f"{path} ({name})" if name else path
        if reason:
            raise UserError(f"{label}: the hub {_endpoint()} cannot be reached: {reason}") from error
        raise UserError(f"{label}: cannot be loaded from the hub ({str(error)[:500]})") from error
    return _known(path, splits)


def unreachable(path: str) -> str | None:
    """Why the hub cannot be reached for dataset `path`; None if it answers. Takes at most PATIENCE seconds."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    answers: list[str | None] = []

    def probe() -> None:
        try:
            urllib.request.urlopen(f"{_endpoint()}/api/datasets/{path}", timeout=PATIENCE - 1).close()
            answers.append(None)
        except urllib.error.HTTPError as error:
            # The hub answers; `load` finds out whether there is such a dataset.
            answers.append(None if error.code < 500 else f"it answers with error {error.code}")
        except (OSError, ValueError) as error:
            answers.append(str(getattr(error, "reason", error)) or type(error).__name__)

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return answers[0] if answers else f"no answer in {PATIENCE:.0f} seconds"


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _known(where: object, splits: Mapping[str, T]) -> dict[str, T]:
    """The splits under their usual names; others are left out."""
    named = {ALIASES.get(split, split): content for split, content in splits.items()}
    if not named.keys() & set(SPLITS):
        raise UserError(f"{where}: no split {', '.join(SPLITS)} (found {', '.join(named)})")
    return {split: named[split] for split in SPLITS if split in named}


def folder_splits(folder: Path, name: str | None, readable: Callable[[Path], bool]) -> dict[str, list[Path]]:
    """Return the `readable` files of each split of a folder, as `datasets` finds them.

    Splits follow the `configs` of its README.md, of which `name` selects one; else the names of folders, else those
    of files. Where no name says a split, all files are training data.
    """
    from datasets.data_files import DataFilesDict, get_data_patterns, sanitize_patterns

    config = _config(folder / "README.md", name)
    where = folder / "README.md" if config else folder
    data_dir, data_files = config.get("data_dir", ""), config.get("data_files")
    base = str(folder / data_dir)
    try:
        patterns = sanitize_patterns(data_files) if data_files else get_data_patterns(base)
        for pattern in [data_dir, *chain.from_iterable(patterns.values())]:
            # Addresses and archives have a colon.
            if pattern.startswith("/") or ":" in pattern or ".." in Path(pattern).parts:
                raise ValueError(f"'{pattern}' is not a file of this folder")
        resolved = DataFilesDict.from_patterns(patterns, base)
    except (FileNotFoundError, ValueError) as error:
        raise UserError(f"{where}: {error}") from error
    splits: dict[str, list[Path]] = {}
    for split, paths in resolved.items():
        for path in map(Path, dict.fromkeys(paths)):
            if readable(path):
                splits.setdefault(split, []).append(path)
            elif data_files:
                raise UserError(f"{where}: '{path.name}' is not a corpus file that Dragoman reads")
    if not splits:
        raise UserError(f"{where}: no corpus file that Dragoman reads")
    return _known(where, splits)


def _config(readme: Path, name: str | None) -> dict[str, Any]:
    """The config `name` of a README.md, or its default one; empty where it has none."""
    from datasets.utils.metadata import MetadataConfigs
    from huggingface_hub import DatasetCard

    configs = MetadataConfigs()
    if readme.is_file():
        try:
            configs = MetadataConfigs.from_dataset_card_data(DatasetCard.load(readme).data)
            name = name or configs.get_default_config_name()
        except (ValueError, yaml.YAMLError) as error:
            raise UserError(f"{readme}: its head is no dataset card with configs ({error})") from error
    return choose("name of the corpus", name or "default", configs) if name or configs else {}

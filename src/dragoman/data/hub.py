"""Datasets on the Hugging Face hub, and local folders laid out like them.

The hub is probed first, so that training without a network does not wait for the retries of a library. In a folder,
only local files are read and no code is run.
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
# Seconds to wait for the hub. Resolving a name can exceed the timeout of a socket, hence the thread.
PATIENCE = 6.0


def is_hub_name(path: str) -> bool:
    """Whether `path` has the form owner/name."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path) is not None


def load(path: str, name: str | None = None) -> "dict[str, datasets.Dataset]":
    """Return the splits of a dataset, from the hub, or from its cache when offline."""
    reason = unreachable(path)
    # Slow to import.
    import datasets

    datasets.config.HF_HUB_OFFLINE = reason is not None
    try:
        splits = datasets.load_dataset(path, name)
    # The library raises many kinds.
    except Exception as error:
        label = f"{path} ({name})" if name else path
        if reason:
            raise UserError(f"{label}: the hub {_endpoint()} cannot be reached: {reason}") from error
        raise UserError(f"{label}: cannot be loaded from the hub ({str(error)[:500]})") from error
    return _standard_splits(path, splits)


def unreachable(path: str) -> str | None:
    """Return why the hub is unreachable for a dataset, or None; at most PATIENCE s."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    answers: list[str | None] = []

    def probe() -> None:
        try:
            urllib.request.urlopen(f"{_endpoint()}/api/datasets/{path}", timeout=PATIENCE - 1).close()
            answers.append(None)
        except urllib.error.HTTPError as error:
            # A client error is an answer; `load` checks whether the dataset exists.
            answers.append(None if error.code < 500 else f"it answers with error {error.code}")
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            answers.append(getattr(reason, "strerror", None) or str(reason) or type(error).__name__)

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return answers[0] if answers else f"no answer in {PATIENCE:.0f} seconds"


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _standard_splits(where: object, splits: Mapping[str, T]) -> dict[str, T]:
    """Return the splits by their standard names, without others."""
    named = {ALIASES.get(split, split): content for split, content in splits.items()}
    if not named.keys() & set(SPLITS):
        raise UserError(f"{where}: no split {', '.join(SPLITS)} (found {', '.join(named)})")
    return {split: named[split] for split in SPLITS if split in named}


def folder_splits(folder: Path, name: str | None, readable: Callable[[Path], bool]) -> dict[str, list[Path]]:
    """Return the `readable` files of each split of a folder, by rules of `datasets`.

    The splits follow config `name` of README.md, else the names of folders, else those of files. If no name contains
    a split, all files are training data.
    """
    from datasets.data_files import DataFilesDict, get_data_patterns, sanitize_patterns

    config = _config(folder / "README.md", name)
    where = folder / "README.md" if config else folder
    data_dir, data_files = config.get("data_dir", ""), config.get("data_files")
    base = str(folder / data_dir)
    try:
        patterns = sanitize_patterns(data_files) if data_files else get_data_patterns(base)
        for pattern in [data_dir, *chain.from_iterable(patterns.values())]:
            # URLs and archives contain a colon.
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
                raise UserError(f"{where}: '{path.name}' is not a corpus file. Convert or remove it")
    if not splits:
        raise UserError(f"{where}: no corpus file. Add .tsv, .jsonl or .parquet files")
    return _standard_splits(where, splits)


def _config(readme: Path, name: str | None) -> dict[str, Any]:
    """Return the config `name` of a README.md, or its default; empty without configs."""
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

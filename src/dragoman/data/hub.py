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
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dragoman.data.text import ALIASES, SPLITS
from dragoman.errors import UserError

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


def folder_splits(folder: Path, readable: Callable[[Path], bool]) -> dict[str, list[Path]]:
    """Return the `readable` files of each split of a folder, by rules of `datasets`.

    The splits follow the names of folders, else those of files. If no name contains a split, all files are training
    data. A README.md is not followed.
    """
    from datasets.data_files import DataFilesDict, get_data_patterns

    try:
        resolved = DataFilesDict.from_patterns(get_data_patterns(str(folder)), str(folder))
    except FileNotFoundError as error:
        raise UserError(f"{folder}: {error}") from error
    splits = {
        split: [path for path in map(Path, dict.fromkeys(paths)) if readable(path)] for split, paths in resolved.items()
    }
    if not any(splits.values()):
        raise UserError(f"{folder}: no corpus file. Add .tsv, .jsonl or .parquet files")
    return _standard_splits(folder, {split: paths for split, paths in splits.items() if paths})

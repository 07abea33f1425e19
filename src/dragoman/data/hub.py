"""Datasets on the Hugging Face hub, by way of `datasets.load_dataset`.

Knows: how to find out within seconds that the hub cannot be reached, before a library spends minutes on
retries, and how to use what an earlier run has downloaded. HF_ENDPOINT and HF_HUB_OFFLINE are respected; code
that comes with a dataset is never run (`datasets` 4 has no way to).
Refuses to know: which corpora are optional, columns, cleaning.
"""

import contextlib
import hashlib
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.data.corpus import ALIASES
from dragoman.errors import UserError

if TYPE_CHECKING:
    import datasets

# Seconds for an answer of any kind. Resolving a name can take longer than the timeout of a socket.
PATIENCE = 6.0


def is_hub_name(path: str) -> bool:
    """Whether `path` could be `owner/name`."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path) is not None


def endpoint() -> str:
    """The hub's address."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def unreachable(path: str) -> str | None:
    """Why the hub cannot be asked for dataset `path`, in words; None when it answers. Takes PATIENCE at most."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    answers: list[str | None] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(f"{endpoint()}/api/datasets/{path}", timeout=PATIENCE - 1).close()
            answers.append(None)
        except urllib.error.HTTPError as error:
            # It answers. Whether there is such a dataset is for `load` to find out.
            answers.append(None if error.code < 500 else f"it answers with error {error.code}")
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            answers.append(getattr(reason, "strerror", None) or str(reason) or type(error).__name__)

    thread, begin = threading.Thread(target=ask, daemon=True), time.monotonic()
    thread.start()
    import datasets  # noqa: F401  # `load` needs it whatever the answer is: let it load while we wait

    thread.join(max(0.0, begin + PATIENCE - time.monotonic()))
    return answers[0] if answers else f"no answer in {PATIENCE:.0f} seconds"


def load(path: str, name: str | None = None, offline: bool = False) -> "dict[str, datasets.Dataset]":
    """The splits of a dataset, memory-mapped: from the hub, or `offline` from the cache.

    Raises `UserError` when there is no such dataset.
    """
    import datasets  # takes a second, and a prepared corpus needs none of it

    try:
        with _offline() if offline else contextlib.nullcontext():
            if not offline:
                _tell_size(path, name)
            loaded = datasets.load_dataset(path, name)
    except Exception as error:  # the library raises a dozen kinds, most of them the user's to mend
        reason = " ".join(str(error.__cause__ or error).split())[:500]
        raise UserError(f"cannot load the corpus {path}{f' ({name})' if name else ''}: {reason}") from error
    return {ALIASES.get(split, split): rows for split, rows in loaded.items()}


def _tell_size(path: str, name: str | None) -> None:
    """What is about to be downloaded and written, as far as the hub knows, before it is."""
    import datasets

    builder = datasets.load_dataset_builder(path, name)
    if not Path(builder.cache_dir).exists() and builder.info.download_size:
        download, disk = (
            round((n or 0) / 1e6) for n in (builder.info.download_size, builder.info.dataset_size)
        )
        print(
            f"{path}: {download:,} MB to download, {disk:,} MB of disk in the cache of datasets when unpacked"
        )


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """As if HF_HUB_OFFLINE had been set before the libraries were imported."""
    import datasets
    import huggingface_hub.constants

    before = datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE = before


def digest(splits: "dict[str, datasets.Dataset]", digest_of: Callable[[Path], str]) -> str:
    """sha256 of the content of all splits as `datasets` keeps them; `digest_of` a file."""
    total = hashlib.sha256()
    for split, rows in sorted(splits.items()):
        total.update(split.encode())
        for cached in rows.cache_files:
            total.update(bytes.fromhex(digest_of(Path(cached["filename"]))))
    return total.hexdigest()

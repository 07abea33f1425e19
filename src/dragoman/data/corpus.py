"""What a parallel corpus is: pairs of sentences, and the entry of `data.corpora` that says where they are.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import NamedTuple

from dragoman.errors import UserError, suggest

SPLITS = ("train", "validation", "test")


class Pair(NamedTuple):
    """A sentence and its translation; `references` are all known translations, where there is more than one."""

    src: str
    tgt: str
    references: tuple[str, ...] = ()


@dataclass(kw_only=True)
class CorpusConfig:
    """One entry of `data.corpora`. Either `path`, or `src_path` and `tgt_path` for two aligned text files.

    `path` is a file (.tsv .jsonl .parquet, also .gz and .zst), a folder laid out like a hub dataset, a dataset on the
    hub (`owner/name`), or `copy`, the made-up corpus of the copy task.
    """

    path: str | None = None
    name: str | None = None  # configuration of a hub dataset, e.g. en-zh of Helsinki-NLP/opus-100
    src_path: str | None = None
    tgt_path: str | None = None
    src_column: str | None = None  # default: the language code data.src
    tgt_column: str | None = None  # default: the language code data.tgt
    split: str = "train"  # which split plain files are; folders and hub datasets bring their own
    repeat: int = 1  # how often each training pair is seen per epoch
    optional: bool = False  # go on without it where it cannot be had

    def __post_init__(self) -> None:
        if bool(self.src_path) != bool(self.tgt_path):
            raise UserError("data.corpora: src_path and tgt_path come together, one names the other side's lines")
        if bool(self.path) == bool(self.src_path):
            raise UserError("data.corpora: an entry takes either path, or src_path and tgt_path")
        if self.repeat < 1:
            raise UserError(f"data.corpora: repeat is {self.repeat} for {self.label}; it must be 1 or more")
        if self.split not in SPLITS:
            raise UserError(
                f"data.corpora: split is '{self.split}' for {self.label}{suggest(self.split, SPLITS)}; "
                f"choose from {', '.join(SPLITS)}"
            )

    @property
    def label(self) -> str:
        """How messages call this corpus."""
        if self.path is None:
            return f"{self.src_path} + {self.tgt_path}"
        return f"{self.path} ({self.name})" if self.name else self.path

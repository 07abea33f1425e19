"""A bundle without its weights: which folder is one, what config.json says, its tokenizers.

Enough to choose a model, to cut text into its pieces, and to run an export of it. It knows what is written beside
the weights, and refuses to know torch: bundle.py, which reads them, says what a bundle holds.

A bundle may come from anywhere, so nothing in it is believed (see untrusted.py): fixed file names, every field
checked against its type and bounds, every file against the manifest. Each refusal is one line.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from dragoman import durable, untrusted
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.languages import Direction, directions
from dragoman.model.shape import ModelConfig
from dragoman.search.hypothesis import SearchConfig

FORMAT_VERSION = 1
T = TypeVar("T")
log = logging.getLogger(__name__)
WEIGHTS, CONFIG, MANIFEST = "model.safetensors", "config.json", "manifest.json"
_MOST = {  # no honest model is larger
    "d_model": 1 << 16,
    "d_ff": 1 << 18,
    "n_heads": 1 << 10,
    "n_encoder_layers": 512,
    "n_decoder_layers": 512,
    "position.length": 1 << 24,
    "position.n_buckets": 1 << 24,
    "position.max_distance": 1 << 24,
}
_MOST_PIECES = 1 << 21
_MAX_LENGTH = 256  # where the bundle does not say
_PRACTICE_RUNS = ("smoke", "copy")  # they prove that the program works, and translate nothing


@dataclass(kw_only=True)
class Description:
    """config.json, read and checked."""

    format_version: int
    src: str
    tgt: str
    src_vocab_size: int
    tgt_vocab_size: int
    joint: bool
    model: ModelConfig
    search: SearchConfig
    meta: dict
    directions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.every_direction) > 1 and not self.joint:
            raise UserError("directions names two, which takes a joint vocabulary")

    @property
    def every_direction(self) -> list[Direction]:
        return directions(self.directions, self.src, self.tgt, key="directions")

    def tokenizer_files(self) -> tuple[str, str]:
        return ("joint.model", "joint.model") if self.joint else ("src.model", "tgt.model")


@dataclass(kw_only=True)
class Shell:
    """A bundle but for its weights. `meta` is provenance: JSON, never needed to run the model.

    Known to the model card: name, data, scores, validation, command, hardware, licence. `meta["max_length"]`
    is the longest training sentence in pieces; the translator cuts longer ones. `directions` is src to tgt where
    nothing else is said; a model of two has a joint vocabulary with a tag for each language.
    """

    model_config: ModelConfig
    src_tokenizer: Tokenizer
    tgt_tokenizer: Tokenizer
    src: str
    tgt: str
    meta: dict[str, Any] = field(default_factory=dict)
    search: SearchConfig = field(default_factory=SearchConfig)
    directions: list[Direction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directions = self.directions or [Direction(self.src, self.tgt)]

    @property
    def max_length(self) -> int:
        """The most pieces of one sentence, as in training; free text beside it may not stop a translation."""
        found = self.meta.get("max_length")
        return found if type(found) is int and found > 0 else _MAX_LENGTH


def load_shell(folder: Path) -> Shell:
    """All of the bundle at `folder` but its weights, compared with the manifest. Raises UserError."""
    if not folder.is_dir():
        raise UserError(f"there is no bundle at {folder}; runs keep theirs in runs/NAME/bundle")
    description = describe(folder)
    src_file, tgt_file = description.tokenizer_files()
    verify(folder, CONFIG, src_file, tgt_file)
    src_tokenizer = Tokenizer.load(folder / src_file)
    tgt_tokenizer = src_tokenizer if description.joint else Tokenizer.load(folder / tgt_file)
    sizes = {"src_vocab_size": description.src_vocab_size, "tgt_vocab_size": description.tgt_vocab_size}
    for (key, size), tokenizer in zip(sizes.items(), (src_tokenizer, tgt_tokenizer), strict=True):
        if len(tokenizer) != size:
            raise UserError(f"{folder}: {key} is {size}, its tokenizer has {len(tokenizer)} pieces")
    for direction in description.every_direction:
        if len(description.every_direction) > 1 and not src_tokenizer.tag(direction.tgt):
            raise UserError(
                f"{folder}: config.json names {direction}, its tokenizer has no tag for {direction.tgt}"
            )
    return Shell(
        model_config=description.model,
        src_tokenizer=src_tokenizer,
        tgt_tokenizer=tgt_tokenizer,
        src=description.src,
        tgt=description.tgt,
        meta=description.meta,
        search=description.search,
        directions=description.every_direction,
    )


def verify(folder: Path, *names: str) -> None:
    """Whether these files of the bundle are those that its manifest lists. Raises UserError."""
    untrusted.verify(folder, untrusted.read_json(folder, MANIFEST), names)


def settled(asked: Path, read: Callable[[Path], T]) -> T:
    """What `read` makes of the bundle meant by `asked`, even if a training run is just putting a new one in place."""
    found = locate(asked)
    before = _identity(found)
    try:
        return read(found)
    except UserError:
        if _identity(locate(asked)) == before:
            raise
        return read(locate(asked))


def locate(folder: Path) -> Path:
    """The bundle folder meant by `folder`: a bundle, or a run that has one."""
    inner = durable.current(folder / "bundle")
    return inner if os.path.isdir(inner) else durable.current(folder)


def describe(folder: Path) -> Description:
    """config.json of the bundle at `folder`, checked, without reading the weights."""
    where = f"{folder / CONFIG}"
    data = untrusted.read_json(folder, CONFIG)
    version = data.get("format_version")
    if type(version) is not int or version < 1:
        raise UserError(f"{where} has no format_version: this is not a bundle of Dragoman")
    if version > FORMAT_VERSION:
        raise UserError(
            f"{where} has format_version {version}, this Dragoman reads up to {FORMAT_VERSION}: "
            "it was made by a newer one; update Dragoman"
        )
    description: Description = untrusted.typed(Description, data, where)
    for key, most in _MOST.items():
        if not 1 <= attrgetter(key)(description.model) <= most:
            raise UserError(f"{where}: model.{key} is {attrgetter(key)(description.model)}, beyond {most}")
    for key in ("src_vocab_size", "tgt_vocab_size"):
        if not 4 <= getattr(description, key) <= _MOST_PIECES:
            raise UserError(
                f"{where}: {key} is {getattr(description, key)}, not between 4 and {_MOST_PIECES}"
            )
    return description


def newest(runs: Path, fits: Callable[[Direction], bool], wanted: str = "this input") -> Path:
    """The bundle in `runs` saved last, one direction of which `fits` what is `wanted`; practice runs do not count."""
    folders = {durable.current(run / "bundle") for run in runs.glob("*") if run.name not in _PRACTICE_RUNS}
    saved, others = {}, []
    for folder in sorted(folders):
        try:
            saved[folder] = (folder / CONFIG).stat().st_mtime_ns
        except PermissionError as error:  # somebody else's
            others.append(f"{folder} cannot be read ({error.strerror})")
            log.warning("note: %s: it is passed over", others[-1])
        except OSError:
            pass  # no bundle yet
    for folder in sorted(saved, key=lambda folder: saved[folder], reverse=True):
        try:
            description = describe(folder)
        except UserError as error:  # not a reason to stop: an older one may do
            others.append(str(error))
            continue
        if any(map(fits, description.every_direction)):
            return folder
        others.append(f"{folder} translates {' and '.join(map(str, description.every_direction))}")
    if others:
        raise UserError(
            f"no model fits {wanted}: {'; '.join(others)}; train one that does, or name it with --model"
        )
    raise UserError(
        f"there is no trained model under {runs}{'' if str(runs).endswith('/') else '/'} yet: "
        "`make train` makes one (or `python train.py experiment=zh_en`)"
    )


def is_bundle(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and (folder / MANIFEST).is_file()


def _identity(folder: Path) -> tuple[int, int] | None:
    """Tells one version of a folder from the next, which has the same name."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino

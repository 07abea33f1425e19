"""What a trained model IS on disk: a folder of plain data, the only thing that using a model ever reads.

    model.safetensors   every parameter once (tied matrices are one), float32 or float16
    config.json         format_version, languages, directions, sizes, the network's shape, search defaults, provenance
    src.model tgt.model the sentencepiece files; joint.model when both sides share one
    manifest.json       size and sha256 of each file
    README.md           the model card, for people; editing it breaks nothing

A bundle may come from anywhere, so `load` believes nothing (see untrusted.py): no pickle, no class names,
fixed file names, every field checked against its type and bounds, no memory taken for a model larger than
its file, every tensor's shape compared before it is read. Each refusal is one line.
Training checkpoints are another matter: they exist to resume, and never leave their run.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as serialized
from torch import Tensor

from dragoman import durable, untrusted
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.languages import Direction, directions
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.model_card import model_card
from dragoman.search.search import SearchConfig

FORMAT_VERSION = 1
DTYPES = {"float32": torch.float32, "float16": torch.float16}
_WEIGHTS, _CONFIG, _MANIFEST, _CARD = "model.safetensors", "config.json", "manifest.json", "README.md"
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
_PRACTICE_RUNS = ("smoke", "copy")  # they prove that the program works, and translate nothing


@dataclass(kw_only=True)
class Bundle:
    """A model with all it needs to be used. `meta` is provenance: JSON, never needed to run the model.

    Known to the model card: name, data, scores, validation, command, hardware, licence. `meta["max_length"]`
    is the longest training sentence in pieces; the translator cuts longer ones. `directions` is src to tgt where
    nothing else is said; a model of two has a joint vocabulary with a tag for each language.
    """

    model: Transformer
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


def save(bundle: Bundle, folder: Path | str, *, dtype: str = "float32") -> None:
    """Write the bundle; a previous one at `folder` is replaced in one move, once the new one is complete.

    Raises UserError when `folder` holds something else, or cannot be written.
    """
    folder = Path(folder)
    if dtype not in DTYPES:
        raise UserError(f"weights cannot be stored as '{dtype}'; choose from {', '.join(DTYPES)}")
    if folder.exists() and not (folder.is_dir() and (_is_bundle(folder) or not any(folder.iterdir()))):
        raise UserError(f"{folder} exists and is not a bundle: it is left alone; name another folder")
    tensors = {
        name: tensor.detach().to("cpu", DTYPES[dtype]).contiguous()
        for name, tensor in _stored_tensors(bundle.model).items()
    }
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"refusing to save: {name} holds values that are not finite")
    durable.replace_folder(folder, lambda new: _fill(new, bundle, tensors))


def load(folder: Path | str, device: str | torch.device = "cpu") -> Bundle:
    """The bundle at `folder`, or of the run at `folder`; its model is in eval mode, in float32.

    Raises UserError in one line for whatever is not a complete, unchanged bundle of a known format.
    """
    asked = Path(folder)
    found = locate(asked)
    before = _identity(found)
    try:
        return _load(found, device)
    except UserError:
        if _identity(locate(asked)) == before:
            raise
        return _load(locate(asked), device)  # a training run put a new version in place while we were reading


def locate(folder: Path) -> Path:
    """The bundle folder meant by `folder`: a bundle, or a run that has one."""
    inner = durable.current(folder / "bundle")
    return inner if inner.is_dir() else durable.current(folder)


def describe(folder: Path) -> Description:
    """config.json of the bundle at `folder`, checked, without reading the weights."""
    where = f"{folder / _CONFIG}"
    data = untrusted.read_json(folder, _CONFIG)
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
    folders = sorted(
        {durable.current(run / "bundle") for run in runs.glob("*") if run.name not in _PRACTICE_RUNS}
    )
    whole = [folder for folder in folders if (folder / _CONFIG).is_file()]
    by_age = sorted(whole, key=lambda folder: (folder / _CONFIG).stat().st_mtime_ns, reverse=True)
    others = []
    for folder in by_age:
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


def average(state_dicts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each tensor, in float32; what is not floating point is taken from the last one.

    Consumes the iterable one by one, so that only two need be in memory. Averaging the last checkpoints of a
    run is Vaswani et al. 2017, section 6.1.
    """
    sums: dict[str, Tensor] = {}
    count = 0
    for state in state_dicts:
        count += 1
        if count > 1 and state.keys() != sums.keys():
            raise UserError(f"cannot average: number {count} has other parameters than the first")
        for name, tensor in state.items():
            if not tensor.is_floating_point():
                sums[name] = tensor.detach().cpu().clone()
                continue
            value = tensor.detach().to("cpu", torch.float64)
            if count > 1 and sums[name].shape != value.shape:
                raise UserError(f"cannot average: {name} of number {count} has another shape than the first")
            sums[name] = sums[name] + value if count > 1 else value.clone()
    if not count:
        raise UserError("cannot average: there are no checkpoints")
    return {
        name: (total / count).float() if total.is_floating_point() else total for name, total in sums.items()
    }


def _stored_tensors(model: Transformer) -> dict[str, Tensor]:
    """Name -> tensor, parameters that several modules share only once, under their first name."""
    shared = dict(model.named_parameters())  # leaves duplicates out
    every = dict(model.named_parameters(remove_duplicate=False))
    buffers = {name: tensor for name, tensor in model.state_dict().items() if name not in every}
    return {**shared, **buffers}


def _fill(folder: Path, bundle: Bundle, tensors: dict[str, Tensor]) -> None:
    joint = bundle.src_tokenizer.sha256 == bundle.tgt_tokenizer.sha256
    description = Description(
        format_version=FORMAT_VERSION,
        src=bundle.src,
        tgt=bundle.tgt,
        src_vocab_size=len(bundle.src_tokenizer),
        tgt_vocab_size=len(bundle.tgt_tokenizer),
        joint=joint,
        model=bundle.model_config,
        search=bundle.search,
        meta=_finite(bundle.meta),
        directions=[str(direction) for direction in bundle.directions],
    )
    (folder / _WEIGHTS).write_bytes(
        serialized(tensors, metadata={"format": "pt"})
    )  # whose errors are the system's
    for name, tokenizer in zip(description.tokenizer_files(), _both(bundle), strict=True):
        (folder / name).write_bytes(Path(tokenizer.path).read_bytes())
    as_dict = dataclasses.asdict(description)
    del as_dict["model"]["embedding"]  # how the weights began; and a path is nobody else's business
    as_json = json.dumps(as_dict, ensure_ascii=False, indent=2, allow_nan=False)
    (folder / _CONFIG).write_text(as_json + "\n", encoding="utf-8")
    n_parameters = sum(tensor.numel() for tensor in tensors.values())
    card = model_card(bundle.directions, bundle.meta, n_parameters=n_parameters)
    (folder / _CARD).write_text(card, encoding="utf-8")
    files = {
        path.name: {"size": path.stat().st_size, "sha256": untrusted.sha256(path)}
        for path in sorted(folder.iterdir())
    }
    manifest = json.dumps({"format_version": FORMAT_VERSION, "files": files}, indent=2)
    (folder / _MANIFEST).write_text(manifest, encoding="utf-8")


def _finite(value: Any) -> Any:
    """Provenance as strict JSON: a loss that was never measured is NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _both(bundle: Bundle) -> tuple[Tokenizer, Tokenizer]:
    return bundle.src_tokenizer, bundle.tgt_tokenizer


def _load(folder: Path, device: str | torch.device) -> Bundle:
    if not folder.is_dir():
        raise UserError(f"there is no bundle at {folder}; runs keep theirs in runs/NAME/bundle")
    description = describe(folder)
    src_file, tgt_file = description.tokenizer_files()
    untrusted.verify(folder, untrusted.read_json(folder, _MANIFEST), (_CONFIG, _WEIGHTS, src_file, tgt_file))
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
    _refuse_giant(description.model, sizes, folder)
    with torch.random.fork_rng(devices=[]):  # initial values nobody keeps must not move anybody's dice
        model = Transformer(description.model, **sizes)
    stored = _stored_tensors(model)
    shapes = {name: list(tensor.shape) for name, tensor in stored.items()}
    tensors = untrusted.read_weights(folder / _WEIGHTS, shapes)
    with torch.no_grad():
        for name, target in stored.items():
            target.copy_(tensors[name])
    return Bundle(
        model=model.to(device).eval(),
        model_config=description.model,
        src_tokenizer=src_tokenizer,
        tgt_tokenizer=tgt_tokenizer,
        src=description.src,
        tgt=description.tgt,
        meta=description.meta,
        search=description.search,
        directions=description.every_direction,
    )


def _refuse_giant(shape: ModelConfig, sizes: Mapping[str, int], folder: Path) -> None:
    """No memory for a model that its file cannot hold. On torch's device `meta` tensors have sizes, but no numbers."""
    with torch.device("meta"):
        n_parameters = sum(parameter.numel() for parameter in Transformer(shape, **sizes).parameters())
    if 2 * n_parameters > (folder / _WEIGHTS).stat().st_size:  # float16 takes two bytes
        raise UserError(f"{folder}: config.json describes a larger model than {_WEIGHTS} can hold")


def _is_bundle(folder: Path) -> bool:
    return (folder / _CONFIG).is_file() and (folder / _MANIFEST).is_file()


def _identity(folder: Path) -> tuple[int, int] | None:
    """Tells one version of a folder from the next, which has the same name."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino

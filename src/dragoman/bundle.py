"""Bundle: a trained model on disk, a folder of plain data and the only thing that using a model reads.

    model.safetensors   every parameter once (tied matrices are one), float32 or float16
    config.json         format_version, languages, directions, sizes, model and search settings, provenance
    src.model tgt.model the sentencepiece files; joint.model when both sides share one
    manifest.json       size and sha256 of each file
    README.md           the model card, for people; editing it breaks nothing
    ctranslate2/        perhaps an export, see translation/export.py

Loading runs no code: config.json fills typed dataclasses, weights are safetensors. torch is imported only where
weights are read or written.
"""

import dataclasses
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman import files
from dragoman.config import ModelConfig, SearchConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError, check_choice
from dragoman.languages import Direction, directions
from dragoman.manifest import MANIFEST, entries, from_json, read_json, verify

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.model.transformer import Transformer

T = TypeVar("T")
log = logging.getLogger(__name__)
FORMAT_VERSION = 1
WEIGHTS, CONFIG = "model.safetensors", "config.json"
DTYPES = ("float32", "float16")
_MAX_LENGTH = 256  # of a bundle that does not record it
_PRACTICE_RUNS = ("smoke", "copy")  # prove that the program works, translate nothing


@dataclass(kw_only=True)
class Description:
    """config.json."""

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

    @property
    def every_direction(self) -> list[Direction]:
        """The directions that the model translates."""
        return directions(self.directions, self.src, self.tgt, key="directions")

    @property
    def tokenizer_files(self) -> tuple[str, str]:
        """File names of the source and the target tokenizer."""
        return ("joint.model", "joint.model") if self.joint else ("src.model", "tgt.model")


@dataclass(kw_only=True)
class BundleInfo:
    """A bundle without its weights; `meta` is provenance: name, data, scores, licence and the like."""

    model_config: ModelConfig
    src_tokenizer: Tokenizer
    tgt_tokenizer: Tokenizer
    src: str
    tgt: str
    meta: dict[str, Any] = field(default_factory=dict)
    search: SearchConfig = field(default_factory=SearchConfig)
    directions: list[Direction] = field(default_factory=list)  # empty: src to tgt

    def __post_init__(self) -> None:
        self.directions = self.directions or [Direction(self.src, self.tgt)]

    @property
    def max_length(self) -> int:
        """The most pieces of a training sentence; the translator splits longer ones."""
        value = self.meta.get("max_length")
        return value if type(value) is int and value > 0 else _MAX_LENGTH


@dataclass(kw_only=True)
class Bundle(BundleInfo):
    """A model with all that its use needs."""

    model: "Transformer"


def save(bundle: Bundle, folder: Path | str, *, dtype: str = "float32") -> None:
    """Write a bundle; it replaces the one at `folder` in one move once it is complete.

    Raises UserError when `folder` holds something else, or cannot be written.
    """
    import torch

    folder = Path(folder)
    check_choice("dtype", dtype, DTYPES)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file()):
        raise UserError(f"{folder}: exists and is not a bundle. Name another folder")
    tensors = {
        name: tensor.detach().to("cpu", getattr(torch, dtype)).contiguous()
        for name, tensor in _stored_tensors(bundle.model).items()
    }
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} holds values that are not finite; the bundle was not saved")
    files.replace_folder(folder, lambda new: _fill(new, bundle, tensors))


def load(folder: Path | str, device: Any = "cpu") -> Bundle:
    """Read the bundle of a bundle or run folder; its model is float32 and in eval mode.

    Raises UserError for a bundle that is incomplete, changed, or of an unknown format.
    """
    return read_stable(Path(folder), lambda path: _load(path, device))


def load_info(folder: Path | str) -> BundleInfo:
    """Read all of a bundle but its weights. Raises UserError like `load`."""
    return read_stable(Path(folder), _load_info)


def describe(folder: Path) -> Description:
    """Read config.json of the bundle at `folder`."""
    path = folder / CONFIG
    data = read_json(path)
    version = data.get("format_version")
    if type(version) is not int or version < 1:
        raise UserError(f"{path}: no format_version (found {version!r}). This is not a bundle of Dragoman")
    if version > FORMAT_VERSION:
        raise UserError(f"{path}: format_version {version} is newer than {FORMAT_VERSION}. Update Dragoman")
    return from_json(Description, data, str(path))


def locate(folder: Path) -> Path:
    """Return the bundle meant by `folder`: a bundle, or a run that has one."""
    inner = files.current(folder / "bundle")
    return inner if inner.is_dir() else files.current(folder)


def newest(runs: Path, fits: Callable[[Direction], bool], wanted: str = "this input") -> Path:
    """Return the bundle in `runs` saved last of which a direction `fits`; practice runs do not count."""
    models, reasons = [], []
    for run in runs.glob("*"):
        try:
            folder = files.current(run / "bundle")
            if run.name not in _PRACTICE_RUNS and folder.is_dir():
                models.append(
                    ((folder / CONFIG).stat().st_mtime_ns, folder, describe(folder).every_direction)
                )
        except (OSError, UserError) as error:
            log.warning("note: %s is skipped: %s", run, error)
            reasons.append(f"{run} cannot be read")
    for _, folder, choices in sorted(models, reverse=True):
        if any(map(fits, choices)):
            return folder
        reasons.append(f"{folder} translates {' and '.join(map(str, choices))}")
    if reasons:
        raise UserError(f"no model fits {wanted}: {'; '.join(reasons)}. Train one, or name it with --model")
    raise UserError(
        f"no trained model under {runs} yet. `make train` makes one (or `python train.py experiment=zh_en`)"
    )


def average(state_dicts: Iterable[Mapping[str, "Tensor"]]) -> dict[str, "Tensor"]:
    """Return the mean of each tensor, in float32 (Vaswani et al. 2017, 6.1); reads the iterable one by one."""
    sums: dict[str, Tensor] = {}
    shapes, count = None, 0
    for count, state in enumerate(state_dicts, 1):
        shapes = shapes or {name: tensor.shape for name, tensor in state.items()}
        if shapes != {name: tensor.shape for name, tensor in state.items()}:
            raise UserError(f"cannot average: number {count} has other parameters or shapes than the first")
        for name, tensor in state.items():
            value = tensor.detach().cpu().double()
            sums[name] = sums[name] + value if count > 1 else value
    if not count:
        raise UserError("cannot average: there are no checkpoints")
    return {name: (total / count).float() for name, total in sums.items()}


def read_stable(folder: Path, read: Callable[[Path], T]) -> T:
    """Read a bundle; retry once if it was replaced while being read."""
    path = locate(folder)
    before = path.stat().st_ino if path.exists() else None
    try:
        return read(path)
    except (UserError, OSError) as error:
        again = locate(folder)
        if again.exists() and again.stat().st_ino != before:
            return read(again)
        if isinstance(error, OSError):
            raise UserError(f"cannot read {error.filename or path}: {error.strerror}") from error
        raise


def _stored_tensors(model: "Transformer") -> dict[str, "Tensor"]:
    """Name -> tensor; parameters that several modules share once, under their first name."""
    once = dict(model.named_parameters())
    every = dict(model.named_parameters(remove_duplicate=False))
    return once | {name: tensor for name, tensor in model.state_dict().items() if name not in every}


def _fill(folder: Path, bundle: Bundle, tensors: dict[str, "Tensor"]) -> None:
    from safetensors.torch import save as serialize

    tokenizers = bundle.src_tokenizer, bundle.tgt_tokenizer
    description = Description(
        format_version=FORMAT_VERSION,
        src=bundle.src,
        tgt=bundle.tgt,
        src_vocab_size=len(tokenizers[0]),
        tgt_vocab_size=len(tokenizers[1]),
        joint=tokenizers[0].sha256 == tokenizers[1].sha256,
        model=bundle.model_config,
        search=bundle.search,
        meta=bundle.meta,
        directions=[str(direction) for direction in bundle.directions],
    )
    # Not `save_file`, whose errors on a full disk are not OSErrors.
    (folder / WEIGHTS).write_bytes(serialize(tensors, metadata={"format": "pt"}))
    for name, tokenizer in zip(description.tokenizer_files, tokenizers, strict=True):
        (folder / name).write_bytes(Path(tokenizer.path).read_bytes())
    as_dict = dataclasses.asdict(description)
    del as_dict["model"]["embedding"]  # how the weights began: a path of the training machine
    strict = json.loads(json.dumps(as_dict, default=str), parse_constant=lambda _: None)  # NaN is not JSON
    (folder / CONFIG).write_text(json.dumps(strict, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(
        _card(bundle, sum(each.numel() for each in tensors.values())), encoding="utf-8"
    )
    manifest = {"format_version": FORMAT_VERSION, "files": entries(folder)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _card(bundle: Bundle, n_parameters: int) -> str:
    """The model card, Markdown; provenance that was not recorded is left out."""
    import jinja2

    environment = jinja2.Environment(keep_trailing_newline=True)
    environment.filters["one_line"] = lambda value: " ".join(str(value).split())
    template = environment.from_string(Path(__file__).with_name("bundle_card.md.j2").read_text("utf-8"))
    return template.render(bundle=bundle, meta=bundle.meta, n_parameters=n_parameters)


def _load_info(folder: Path) -> BundleInfo:
    if not folder.is_dir():
        raise UserError(f"{folder}: no bundle there. Runs keep theirs in runs/NAME/bundle")
    config = describe(folder)
    src_file, tgt_file = config.tokenizer_files
    verify(folder, (CONFIG, src_file, tgt_file))
    src = Tokenizer.load(folder / src_file)
    tgt = src if config.joint else Tokenizer.load(folder / tgt_file)
    if (len(src), len(tgt)) != (config.src_vocab_size, config.tgt_vocab_size):
        raise UserError(
            f"{folder / CONFIG}: src_vocab_size and tgt_vocab_size should be {len(src)} and {len(tgt)}"
        )
    choices = config.every_direction
    if len(choices) > 1 and not all(src.tag(direction.tgt) for direction in choices):
        raise UserError(f"{folder / CONFIG}: directions: the tokenizer has no tags for two directions")
    return BundleInfo(
        model_config=config.model,
        src_tokenizer=src,
        tgt_tokenizer=tgt,
        src=config.src,
        tgt=config.tgt,
        meta=config.meta,
        search=config.search,
        directions=choices,
    )


def _load(folder: Path, device: Any) -> Bundle:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from dragoman.model.transformer import Transformer

    info = _load_info(folder)
    verify(folder, [WEIGHTS])
    sizes = {"src_vocab_size": len(info.src_tokenizer), "tgt_vocab_size": len(info.tgt_tokenizer)}
    with torch.random.fork_rng(devices=[]):  # the initial values are overwritten
        model = Transformer(info.model_config, **sizes)
    path = folder / WEIGHTS
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: not a safetensors file ({error})") from error
    targets = _stored_tensors(model)
    for name in sorted(tensors.keys() | targets.keys()):
        expected, shape = (
            list(each[name].shape) if name in each else "absent" for each in (targets, tensors)
        )
        if expected != shape:
            raise UserError(
                f"{path}: {name} should be {expected} (found {shape}); {CONFIG} is of another model"
            )
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(tensors[name])
    return Bundle(model=model.to(device).eval(), **vars(info))

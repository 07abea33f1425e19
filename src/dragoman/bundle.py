"""Bundle: a trained model on disk, a folder of plain data.

Translation reads only this folder of a run.

    model.safetensors   all parameters in float32 or float16, a tied matrix once
    config.json         format_version, languages, directions, sizes, model and search settings, provenance
    src.model tgt.model the sentencepiece files; joint.model when both sides share one
    manifest.json       size and sha256 of each file
    README.md           the model card, for people; it may be edited
    ctranslate2/        exports, if there are any, see translation/export.py and export/
    huggingface/  *.argosmodel

Loading runs no code from the folder: config.json becomes typed dataclasses, and the weights are safetensors. torch is
imported only where weights are read or written.
"""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from dragoman import files
from dragoman.config import ModelConfig, SearchConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.languages import Direction, directions

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.model.transformer import Transformer

FORMAT_VERSION = 1
WEIGHTS, CONFIG, CARD, MANIFEST = "model.safetensors", "config.json", "README.md", "manifest.json"
# Fields of config.json that are no fields of BundleInfo; the sizes are there only for people to read.
_NOT_IN_INFO = ("format_version", "model", "src_vocab_size", "tgt_vocab_size", "joint")
_TEST_RUNS = ("smoke", "copy")  # names of runs that only test the program
log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class BundleInfo:
    """A bundle without its weights; `meta`: name, data, scores, licence of the model."""

    src: str
    tgt: str
    model_config: ModelConfig
    search: SearchConfig = field(default_factory=SearchConfig)
    meta: dict[str, Any] = field(default_factory=dict)
    directions: list[Direction] = field(default_factory=list)  # or their names; empty: src to tgt
    src_tokenizer: Tokenizer
    tgt_tokenizer: Tokenizer

    def __post_init__(self) -> None:
        self.directions = directions(list(map(str, self.directions)), self.src, self.tgt, key="directions")

    @property
    def max_length(self) -> int:
        """Maximum pieces of a training sentence."""
        return self.meta.get("max_length", 256)


@dataclass(kw_only=True)
class Bundle(BundleInfo):
    """A model with its settings and tokenizers."""

    model: "Transformer"


def save(bundle: Bundle, folder: Path | str, *, dtype: str = "float32") -> None:
    """Write a bundle; it replaces the old one at `folder` when it is complete."""
    import torch

    folder = Path(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file()):
        raise UserError(f"{folder}: exists and is not a bundle. Name another folder")
    tensors = {  # a tied parameter appears once, under its first name; a bias of zeros is left out
        name: tensor.detach().to("cpu", getattr(torch, dtype)).contiguous()
        for name, tensor in bundle.model.named_parameters()
        if name != "projection.bias" or tensor.any()
    }
    files.replace_folder(folder, lambda new: _fill(new, bundle, tensors))


def load(folder: Path | str, device: Any = "cpu") -> Bundle:
    """Load a bundle in float32 and eval mode. Raises UserError if it is damaged."""
    from safetensors.torch import load_model

    info, folder = load_info(folder), locate(Path(folder))
    verify(folder, [WEIGHTS])
    model = untrained_model(info)
    load_model(model, folder / WEIGHTS, strict=False)  # without projection.bias all pieces are possible
    return Bundle(model=model.to(device).eval(), **vars(info))


def untrained_model(info: BundleInfo) -> "Transformer":
    """Return a model of the bundle's shape, without its weights."""
    from dragoman.model.transformer import Transformer

    sizes = {"src_vocab_size": len(info.src_tokenizer), "tgt_vocab_size": len(info.tgt_tokenizer)}
    return Transformer(info.model_config, **sizes)


def load_info(folder: Path | str) -> BundleInfo:
    """Load a bundle without its weights. Raises UserError if it is damaged."""
    folder = locate(Path(folder))
    config = read_json(folder / CONFIG)
    # joint.model, or src.model before tgt.model
    names = sorted(name for name in listed(folder) if name.endswith(".model")) or ["joint.model"]
    verify(folder, (CONFIG, *names))
    return info_from_json(config, [Tokenizer(folder / name) for name in names], folder / CONFIG)


def info_from_json(data: dict[str, Any], tokenizers: Sequence[Tokenizer], path: Path) -> BundleInfo:
    """Return the content of a config.json, typed; `path` is its place in messages."""
    version = data.get("format_version")
    if version != FORMAT_VERSION:
        raise UserError(f"{path}: format_version is not {FORMAT_VERSION} (found {version}). Update Dragoman")
    settings = {name: value for name, value in data.items() if name not in _NOT_IN_INFO}
    settings |= {"model_config": data["model"], "src_tokenizer": tokenizers[0], "tgt_tokenizer": tokenizers[-1]}
    return from_json(BundleInfo, settings, str(path))


def locate(folder: Path) -> Path:
    """Return the bundle folder of the run at `folder`, or `folder` itself."""
    folder = folder if folder.name else folder.absolute()  # "."
    is_included = folder.parts[:2] == ("data", "pretrained") and not folder.exists()
    folder = files.included(str(folder)) if is_included else folder
    inner = files.current(folder / "bundle")
    return inner if inner.is_dir() else files.current(folder)


def evaluations(folder: Path) -> Path:
    """Return the folder for evaluations of a bundle; an included one may be read-only."""
    if folder.resolve() in included():
        return Path("runs", f"included_{folder.name}", "evaluation")
    # Bundles beside each other, such as means, have folders of their own.
    best = folder.name in ("bundle", "bundle.previous")
    return folder.parent / ("evaluation" if best else f"evaluation_{folder.name}")


def included() -> list[Path]:
    """Return the bundles that come with Dragoman."""
    return sorted(path.parent.resolve() for path in files.included("data/pretrained").glob(f"*/{CONFIG}"))


def newest(runs: Path, fits: Callable[[Direction], bool], wanted: str = "this input") -> Path:
    """Return the newest bundle in `runs` that has a direction for which `fits` holds.

    Without one, an included bundle is returned.
    """
    paths = (files.current(run / "bundle") / CONFIG for run in runs.glob("*") if run.name not in _TEST_RUNS)
    trained = sorted(filter(Path.is_file, paths), key=lambda path: path.stat().st_mtime, reverse=True)
    others = []
    for folder in [*(path.parent for path in trained), *included()]:
        choices = load_info(folder).directions
        if any(map(fits, choices)):
            return folder
        others.append(f"{folder} for {' and '.join(map(str, choices))}")
    raise UserError(f"{runs}: no model for {wanted} (found {'; '.join(others)}). Train one, or use --model")


def entries(folder: Path) -> dict[str, dict[str, Any]]:
    """Return name -> size and sha256 of each file in `folder`."""
    paths = sorted(folder.iterdir())
    return {path.name: {"size": path.stat().st_size, "sha256": files.sha256(path)} for path in paths}


def listed(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the entries that manifest.json holds."""
    return read_json(folder / MANIFEST).get("files", {})


def verify(folder: Path, names: Iterable[str]) -> None:
    """Compare the named files with manifest.json. Raises UserError where they differ."""
    expected = listed(folder)
    for name in names:
        if name not in expected or not (folder / name).is_file():
            raise UserError(f"{folder}: {name} is missing. This is not a complete bundle")
        if files.sha256(folder / name) != expected[name].get("sha256"):
            raise UserError(f"{folder / name}: damaged or changed (its sha256 is not that of {MANIFEST})")


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file of a bundle, a run or an evaluation."""
    if not path.is_file():
        missing = f"{path.name} is missing" if path.parent.is_dir() else "no such folder"
        raise UserError(f"{path.parent}: {missing}. Name a run (runs/NAME)")
    try:
        return dict(json.loads(path.read_bytes()))
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: not a JSON object ({error})") from error


def from_json(kind: type[Any], value: Any, where: str) -> Any:
    """Return a JSON object as the dataclass `kind`, which checks its fields.

    Unknown fields are ignored with a note and absent ones take their defaults, so that bundles outlive changes.
    """
    if not is_dataclass(kind):
        return value
    hints, names = get_type_hints(kind), {field.name for field in fields(kind)}
    for name in sorted(value.keys() - names):
        log.warning("note: %s: unknown field %r is ignored", where, name)
    values = {name: from_json(hints[name], value[name], f"{where}: {name}") for name in names & value.keys()}
    try:
        return kind(**values)
    except (TypeError, UserError) as error:  # a field is missing, or its value is not allowed
        raise UserError(f"{where}: {error}") from error


def _fill(folder: Path, bundle: Bundle, tensors: dict[str, "Tensor"]) -> None:
    import jinja2
    from safetensors.torch import save as serialize

    src, tgt = bundle.src_tokenizer, bundle.tgt_tokenizer
    tokenizers = {"joint.model": src} if src.sha256 == tgt.sha256 else {"src.model": src, "tgt.model": tgt}
    model = asdict(bundle.model_config)
    del model["embedding"]  # it names a file of word vectors on the training machine
    config = {
        "format_version": FORMAT_VERSION,
        "src": bundle.src,
        "tgt": bundle.tgt,
        "src_vocab_size": len(src),
        "tgt_vocab_size": len(tgt),
        "joint": len(tokenizers) == 1,
        "model": model,
        "search": asdict(bundle.search),
        "meta": bundle.meta,
        "directions": [str(direction) for direction in bundle.directions],
    }
    strict = json.loads(json.dumps(config, default=str), parse_constant=lambda _: None)  # NaN is not JSON
    (folder / CONFIG).write_text(json.dumps(strict, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    for name, tokenizer in tokenizers.items():
        (folder / name).write_bytes(Path(tokenizer.path).read_bytes())
    # Not `save_file`: on a full disk it raises an error that is no OSError.
    (folder / WEIGHTS).write_bytes(serialize(tensors, metadata={"format": "pt"}))
    template = jinja2.Template(Path(__file__).with_name("bundle_card.md.j2").read_text("utf-8"))
    n_parameters = sum(tensor.numel() for name, tensor in tensors.items() if name != "projection.bias")  # 0 or -1e9
    card = template.render(bundle=bundle, meta=bundle.meta, n_parameters=n_parameters)
    (folder / CARD).write_text(card + "\n", encoding="utf-8")
    manifest = {"format_version": FORMAT_VERSION, "files": entries(folder)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")

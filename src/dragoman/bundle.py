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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as serialized
from torch import Tensor

from dragoman import durable, untrusted
from dragoman.cost import Cost
from dragoman.data.tokenizer import Tokenizer
from dragoman.description import (
    CONFIG,
    FORMAT_VERSION,
    MANIFEST,
    WEIGHTS,
    Description,
    Shell,
    describe,
    is_bundle,
    load_shell,
    locate,
    newest,
    settled,
    verify,
)
from dragoman.errors import UserError
from dragoman.model.shape import ModelConfig
from dragoman.model.transformer import Transformer
from dragoman.model_card import model_card

__all__ = ["Bundle", "Description", "average", "describe", "load", "locate", "newest", "save"]

DTYPES = {"float32": torch.float32, "float16": torch.float16}
_CARD = "README.md"


@dataclass(kw_only=True)
class Bundle(Shell):
    """A model with all it needs to be used."""

    model: Transformer


def save(bundle: Bundle, folder: Path | str, *, dtype: str = "float32") -> None:
    """Write the bundle; a previous one at `folder` is replaced in one move, once the new one is complete.

    Raises UserError when `folder` holds something else, or cannot be written.
    """
    folder = Path(folder)
    if dtype not in DTYPES:
        raise UserError(f"weights cannot be stored as '{dtype}'; choose from {', '.join(DTYPES)}")
    if folder.exists() and not (folder.is_dir() and (is_bundle(folder) or not any(folder.iterdir()))):
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
    return settled(Path(folder), lambda found: _load(found, device))


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
    (folder / WEIGHTS).write_bytes(
        serialized(tensors, metadata={"format": "pt"})
    )  # whose errors are the system's
    for name, tokenizer in zip(description.tokenizer_files(), _both(bundle), strict=True):
        (folder / name).write_bytes(Path(tokenizer.path).read_bytes())
    as_dict = dataclasses.asdict(description)
    del as_dict["model"]["embedding"]  # how the weights began; and a path is nobody else's business
    as_json = json.dumps(as_dict, ensure_ascii=False, indent=2, allow_nan=False)
    (folder / CONFIG).write_text(as_json + "\n", encoding="utf-8")
    n_parameters = sum(tensor.numel() for tensor in tensors.values())
    card = model_card(bundle.directions, bundle.meta, n_parameters=n_parameters)
    (folder / _CARD).write_text(card, encoding="utf-8")
    files = {
        path.name: {"size": path.stat().st_size, "sha256": untrusted.sha256(path)}
        for path in sorted(folder.iterdir())
    }
    manifest = json.dumps({"format_version": FORMAT_VERSION, "files": files}, indent=2)
    (folder / MANIFEST).write_text(manifest, encoding="utf-8")


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
    shell = load_shell(folder)
    verify(folder, WEIGHTS)
    sizes = {"src_vocab_size": len(shell.src_tokenizer), "tgt_vocab_size": len(shell.tgt_tokenizer)}
    _refuse_giant(shell.model_config, sizes, folder)
    with torch.random.fork_rng(devices=[]):  # initial values nobody keeps must not move anybody's dice
        model = Transformer(shell.model_config, **sizes)
    stored = _stored_tensors(model)
    shapes = {name: list(tensor.shape) for name, tensor in stored.items()}
    tensors = untrusted.read_weights(folder / WEIGHTS, shapes)
    with torch.no_grad():
        for name, target in stored.items():
            target.copy_(tensors[name])
    return Bundle(model=model.to(device).eval(), **vars(shell))


def _refuse_giant(shape: ModelConfig, sizes: Mapping[str, int], folder: Path) -> None:
    """No memory for a model that its file cannot hold: counted by arithmetic, for torch's device `meta`, which would
    count as well, takes its compiler and sympy to begin with, as long again as torch itself."""
    n_parameters = sum(Cost(config=shape, **sizes).parameters().values())
    if 2 * n_parameters > (folder / WEIGHTS).stat().st_size:  # float16 takes two bytes
        raise UserError(f"{folder}: config.json describes a larger model than {WEIGHTS} can hold")

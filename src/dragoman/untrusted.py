"""Reading files that may come from anywhere, and believing nothing in them.

Names are fixed by the reader, never taken from the files; a file must be a regular one inside its folder;
JSON is small and of exactly the types asked for; tensors have exactly the names and shapes expected before
any memory is taken for them. Every refusal is a `UserError` of one line. This file knows formats, and
refuses to know what a model is. It imports torch only where tensors are read: what an export of a model needs to
be believed is here too, and that is to start at once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import pickletools
import re
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

import yaml

from dragoman.errors import UserError, suggest

if TYPE_CHECKING:
    from torch import Tensor

_MOST_JSON = 1 << 22  # bytes; a configuration has about two thousand, its provenance a few more
_HARMLESS = re.compile(
    r"collections OrderedDict|torch \w+Storage|torch\._utils _rebuild_(tensor_v2|parameter)"
)
_REFERENCE = re.compile(r"\$\{[\w.]+\}")
_FLOATS = {"F32": 4, "F16": 2, "BF16": 2}  # and the bytes of one


def regular_file(folder: Path, name: str) -> Path:
    """`folder`/`name`, when that is a file and lies in the folder (a link may not lead out of it)."""
    path = folder / name
    try:
        if not path.is_file():
            what = "is not a file" if path.exists() else "is missing"
            raise UserError(f"{folder} is not a complete bundle: {name} {what}")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{path} is a link that leads out of its folder: refused")
    return path


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of moderate size."""
    path = regular_file(folder, name)
    try:
        if path.stat().st_size > _MOST_JSON:
            raise UserError(f"{path} has {path.stat().st_size} bytes: too many for what it should be")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: truncated or foreign") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} should hold a JSON object")
    return data


class _WithoutAliases(yaml.SafeLoader):
    """Ten aliases of ten aliases of ten ... are a page of text and gigabytes of lists."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has aliases (*name), which are not used here")
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> Any:
    """Plain values from a YAML file of moderate size: no tags but YAML's own, no aliases."""
    try:
        if path.stat().st_size > _MOST_JSON:
            raise UserError(f"{path} has {path.stat().st_size} bytes: too many for what it should be")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"cannot read {path}: {error}") from error
    return plain_yaml(text, f"cannot read {path}")


def plain_yaml(text: str, failure: str) -> Any:
    """The same of a text. Raises UserError: `failure`, and why."""
    try:
        return yaml.load(text, _WithoutAliases)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        told = getattr(error, "problem", None) or str(error).splitlines()[0] or "nested too deeply"
        raise UserError(f"{failure}: {told}") from error


def refuse_resolvers(values: Any, key: str = "") -> None:
    """In values that are about to be resolved, `${name}` may stand for another value, and for nothing else."""
    if isinstance(values, dict | list):
        for name, value in values.items() if isinstance(values, dict) else enumerate(values):
            refuse_resolvers(value, f"{key}.{name}" if key else str(name))
    elif isinstance(values, str) and "${" in _REFERENCE.sub("", values):
        raise UserError(f"{key}={values[:80]}: ${{...}} can only name another setting here, e.g. ${{name}}")


def verify(folder: Path, manifest: Mapping[str, Any], names: Sequence[str]) -> None:
    """Whether each of the named files has the size and the sha256 that the manifest gives."""
    entries = manifest.get("files")
    for name in dict.fromkeys(names):
        entry = entries.get(name) if isinstance(entries, dict) else None
        if not isinstance(entry, dict):
            raise UserError(f"{folder} is not a complete bundle: its manifest does not list {name}")
        path = regular_file(folder, name)
        size = path.stat().st_size
        if size != entry.get("size"):
            raise UserError(
                f"{path} has {size} bytes, the manifest says {entry.get('size')}: truncated or changed"
            )
        if sha256(path) != entry.get("sha256"):
            raise UserError(f"{path} is damaged or was changed: its sha256 is not that of the manifest")


def sha256(path: Path) -> str:
    """Of a file's bytes, in hexadecimal."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def typed(kind: Any, value: Any, where: str) -> Any:
    """JSON `value` as `kind`: a dataclass (no unknown fields), bool, int, float, str, dict or list.

    A field may be absent only if it has a default: one added to a configuration later must default to what
    was done before. Numbers must be finite and int is not bool. `where` names the place in messages. A
    dataclass's own checks run as usual.
    """
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        fields = get_type_hints(kind)
        required = [f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is MISSING]
        if not isinstance(value, dict):
            raise UserError(f"{where} should be an object")
        for key in value:
            if key not in fields:
                raise UserError(f"{where} has an unknown field '{key}'{suggest(key, fields)}")
        for key in required:
            if key not in value:
                raise UserError(f"{where} lacks the field '{key}'")
        parts = {key: typed(fields[key], inner, f"{where}: {key}") for key, inner in value.items()}
        try:
            return kind(**parts)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
    if get_origin(kind) is not None:
        kind = get_origin(kind)
    if kind is float and type(value) is int and abs(value) < 1 << 53:
        value = float(value)
    if type(value) is not kind:
        raise UserError(f"{where} should be {kind.__name__}, not {str(value)[:40]!r}")
    if kind is float and not math.isfinite(value):
        raise UserError(f"{where} is {value}, not a finite number")
    return value


def read_weights(path: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """The tensors of a safetensors file, float32, on the CPU; exactly those named by `shapes`, so shaped.

    All names, shapes, types and places are compared before the library sees the file.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        header, n_bytes = _header(path)
        for name in sorted(header.keys() ^ shapes.keys()):
            what = "holds an unexpected tensor" if name in header else "lacks the tensor"
            raise UserError(f"{path} {what} {name[:100]!r}: it belongs to another model")
        for name, shape in shapes.items():
            kind, stored = header[name].get("dtype"), header[name].get("shape")
            if stored != list(shape):
                raise UserError(f"{path}: {name} is {str(stored)[:100]}, config.json makes it {list(shape)}")
            if kind not in _FLOATS:
                raise UserError(f"{path}: {name} is of type {str(kind)[:40]!r}, not {', '.join(_FLOATS)}")
        _check_places(path, header, n_bytes)
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name).to(torch.float32) for name in shapes}
    except SafetensorError as error:
        raise UserError(f"{path} is not a safetensors file: truncated or foreign ({error})") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _header(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """What a safetensors file says of its tensors, and the bytes it has for them.

    The format: 8 bytes that give the length of a JSON object, the object, the tensors. The library would take 100 MB
    of JSON and, of two tensors of one name, the last.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        n_bytes = path.stat().st_size - 8 - size
        if n_bytes < 0:
            raise UserError(f"{path} is not a safetensors file: truncated or foreign")
        if size > _MOST_JSON:
            raise UserError(f"{path}: its header has {size:,} bytes, no model of ours needs {_MOST_JSON:,}")
        raw = file.read(size)
    try:
        header = json.loads(raw, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        told = f" ({error})" if isinstance(error, TwiceError) else ""
        raise UserError(
            f"{path} is not a safetensors file: its header is no JSON of the kind{told}"
        ) from error
    if not isinstance(header, dict):
        raise UserError(f"{path} is not a safetensors file: its header is no JSON object")
    header.pop("__metadata__", None)
    if not all(isinstance(entry, dict) for entry in header.values()):
        raise UserError(f"{path} is not a safetensors file: its header describes no tensors")
    return header, n_bytes


def _check_places(path: Path, header: Mapping[str, dict[str, Any]], n_bytes: int) -> None:
    """Whether the tensors, each of the size that its shape and type need, lie one after the other and fill the file."""
    places = []
    for name, entry in header.items():
        place, size = entry.get("data_offsets"), math.prod(entry["shape"]) * _FLOATS[entry["dtype"]]
        if not (isinstance(place, list) and [type(at) for at in place] == [int, int]):
            raise UserError(f"{path}: {name} has no place in the file")
        if place[1] - place[0] != size:
            raise UserError(f"{path}: {name} takes {size} bytes, its place in the file has another size")
        places.append((*place, name))
    end = 0
    for begin, after, name in sorted(places):
        if begin != end:
            raise UserError(f"{path}: {name} overlaps another tensor, or there is a gap before it")
        end = after
    if end != n_bytes:
        raise UserError(f"{path} has {n_bytes} bytes for tensors of {end}: truncated or changed")


class TwiceError(ValueError):
    """An object has two values of one name."""


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json`: an object each key of which is there once; of two values one would be lost unseen."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise TwiceError(f"the key '{twice[:50]}' is there twice")
    return found


def read_archive(path: Path, map_location: Any = "cpu") -> Any:
    """What training saved with torch: plain values and tensors, of an archive that `check_archive` has passed."""
    import torch

    check_archive(path)
    try:
        return torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:  # torch.load raises a different one for every way a file can be wrong
        reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        raise UserError(f"{path} is not a checkpoint of training: {reason}") from error


def check_archive(path: Path) -> None:
    """Whether a checkpoint is a zip as torch writes it, which takes no more memory than disk to read.

    Nothing in it is compressed, and its pickle names nothing but what plain values and tensors are made of.
    weights_only=True alone runs no code, but would unpack gigabytes from a page.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise UserError(f"{path} is not a checkpoint of training: it is compressed")
            pickled = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
            if len(pickled) != 1 or sum(entry.file_size for entry in entries) > path.stat().st_size:
                raise UserError(f"{path} is not a checkpoint of training: not an archive of torch's")
            for code, name, _ in pickletools.genops(archive.read(pickled[0])):
                if code.name in ("INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4") or (
                    code.name == "GLOBAL" and not _HARMLESS.fullmatch(str(name))
                ):
                    raise UserError(f"{path} is not a checkpoint of training: it asks for {str(name)[:80]!r}")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except UserError:
        raise
    except Exception as error:  # zipfile and pickletools raise many kinds, EOFError among them
        raise UserError(f"{path} is not a checkpoint of training: truncated or foreign") from error

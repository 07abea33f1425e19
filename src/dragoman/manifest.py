"""Typed JSON and checksums of a folder of plain data: a bundle, or an export in it."""

import dataclasses
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from dragoman import files
from dragoman.errors import UserError

MANIFEST = "manifest.json"
log = logging.getLogger(__name__)


def verify(folder: Path, names: Iterable[str]) -> None:
    """Compare the named files with manifest.json. Raises UserError where they differ."""
    listed = read_json(folder / MANIFEST).get("files")
    for name in names:
        entry = listed.get(name) if isinstance(listed, dict) else None
        if not isinstance(entry, dict) or not (folder / name).is_file():
            raise UserError(f"{folder}: {name} is missing. This is not a complete bundle")
        if files.sha256(folder / name) != entry.get("sha256"):
            raise UserError(f"{folder / name}: damaged or changed (its sha256 is not that of {MANIFEST})")


def entries(folder: Path) -> dict[str, dict[str, Any]]:
    """Return name -> size and sha256 of each file in `folder`."""
    paths = sorted(folder.iterdir())
    return {path.name: {"size": path.stat().st_size, "sha256": files.sha256(path)} for path in paths}


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file of a bundle."""
    if not path.is_file():
        raise UserError(f"{path.parent}: {path.name} is missing. This is not a complete bundle")
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({str(error)[:80]})") from error
    if not isinstance(data, dict):
        raise UserError(f"{path}: should be a JSON object (found {str(data)[:40]!r})")
    return data


def from_json(kind: Any, value: Any, where: str) -> Any:
    """Return a JSON value as `kind`: a dataclass, whose own checks run, or one of the types of JSON.

    Unknown fields are ignored with a note and absent ones take their defaults, so that bundles outlive changes.
    """
    if not dataclasses.is_dataclass(kind):
        kinds = get_args(kind) if type(None) in get_args(kind) else (get_origin(kind) or kind,)
        if type(value) in kinds or (float in kinds and type(value) is int):
            return value
        raise UserError(f"{where}: should be {kinds[0].__name__} (found {str(value)[:40]!r})")
    if not isinstance(value, dict):
        raise UserError(f"{where}: should be an object (found {str(value)[:40]!r})")
    hints, fields = get_type_hints(kind), {each.name: each for each in dataclasses.fields(kind)}
    for name in sorted(value.keys() - fields.keys()):
        log.warning("note: %s: unknown field %r is ignored", where, name[:40])
    for name, each in fields.items():
        if name not in value and each.default is each.default_factory is dataclasses.MISSING:
            raise UserError(f"{where}: the field '{name}' is missing")
    try:
        return kind(**{n: from_json(hints[n], value[n], f"{where}: {n}") for n in fields if n in value})  # type: ignore[operator]
    except UserError as error:
        message = str(error)
        raise UserError(message if message.startswith(where) else f"{where}: {message}") from error

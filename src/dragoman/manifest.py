"""Typed JSON and checksums of a bundle, or of an export in it."""

import dataclasses
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_type_hints

from dragoman import files
from dragoman.errors import UserError

MANIFEST = "manifest.json"
log = logging.getLogger(__name__)


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
        raise UserError(f"{path.parent}: {path.name} is missing. This is not a complete bundle or run")
    try:
        return dict(json.loads(path.read_bytes()))
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: not a JSON object ({error})") from error


def from_json(kind: type[Any], value: Any, where: str) -> Any:
    """Return a JSON object as the dataclass `kind`, which checks its fields.

    Unknown fields are ignored with a note and absent ones take their defaults, so that bundles outlive changes.
    """
    if not dataclasses.is_dataclass(kind):
        return value
    hints, names = get_type_hints(kind), {field.name for field in dataclasses.fields(kind)}
    for name in sorted(value.keys() - names):
        log.warning("note: %s: unknown field %r is ignored", where, name)
    fields = {name: from_json(hints[name], value[name], f"{where}: {name}") for name in names & value.keys()}
    try:
        return kind(**fields)
    except (TypeError, UserError) as error:  # a field is missing, or its value is not allowed
        raise UserError(f"{where}: {error}") from error

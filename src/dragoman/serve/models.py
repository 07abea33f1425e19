"""Models of the server, each replaced when its folder holds a new bundle.

A model is loaded from a private copy of its bundle. The folder may be replaced or deleted later. The model stays in use
until the folder holds a complete new bundle. The copy gets a CTranslate2 export if the bundle has none, as during
training.
"""

import logging
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman import bundle as bundles
from dragoman.errors import UserError
from dragoman.languages import Direction, primary
from dragoman.manifest import MANIFEST, verify
from dragoman.translation.ctranslate2 import export_of, made_of
from dragoman.translation.translator import Translator

SAMPLES = {"zh": "好久不见", "en": "Long time no see."}  # translated by each new bundle, for /health and the page
log = logging.getLogger(__name__)


class Model:
    """The translator of one folder; `history` has an entry for each bundle loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.error, self.history = folder, "", list[dict[str, Any]]()
        self._tried = self._version()
        self._use(load(folder))

    @property
    def directions(self) -> list[Direction]:
        return self.translator.bundle.directions

    def status(self) -> dict[str, Any]:
        """Return the entry for /health."""
        name = self.translator.bundle.meta.get("name") or self.folder.name
        directions, engine = [str(direction) for direction in self.directions], self.translator.engine
        entry = {"name": name, "directions": directions, "engine": engine, **self.history[-1], "history": self.history}
        return entry | ({"error": self.error} if self.error else {})

    def refresh(self) -> None:
        """Load the bundle if it has changed; if that fails, the old one stays in use."""
        version = self._version()
        if version == self._tried:
            return
        self._tried = version
        try:
            if version is None:
                raise UserError(f"{self.folder}: the bundle is gone")
            self._use(load(self.folder))
            self.error = ""
        except Exception as error:  # a damaged folder must not stop the server
            self.error = f"{error}. The model loaded before stays in use"
            log.warning("warning: %s", self.error)

    def _use(self, translator: Translator) -> None:
        direction, scores = translator.bundle.directions[0], translator.bundle.meta.get("validation") or {}
        entry: dict[str, Any] = {key: scores[key] for key in ("step", "bleu") if key in scores}
        if sample := SAMPLES.get(primary(translator.bundle.src)):
            entry |= {"source": sample, "translation": translator.translate([sample], direction=str(direction))[0].text}
        self.translator = translator  # the next batch uses it
        self.history.append(entry)

    def _version(self) -> tuple[int, ...] | None:
        """Return numbers that differ from bundle to bundle, or None without a bundle."""
        try:
            status = (bundles.locate(self.folder) / MANIFEST).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size


class Models:
    """All models; each direction belongs to one."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.models = [Model(folder) for folder in folders]
        names = [str(direction) for model in self.models for direction in model.directions]
        if double := {name for name in names if names.count(name) > 1}:
            raise UserError(f"--model: several models translate {min(double)}. Name one of them")

    @property
    def directions(self) -> list[Direction]:
        return [direction for model in self.models for direction in model.directions]

    @property
    def languages(self) -> list[str]:
        """The languages of all models, sources first."""
        sources, targets = zip(*self.directions, strict=True)
        return list(dict.fromkeys((*sources, *targets)))

    def translator(self, direction: Direction) -> Translator:
        """Return the translator of a direction, as it is now."""
        return next(model.translator for model in self.models if direction in model.directions)


def load(folder: Path) -> Translator:
    """Load a private copy of the bundle of `folder`, with an export.

    The copy is deleted together with the translator.
    """
    bundles.load_info(folder)
    bundle = bundles.locate(folder)
    verify(bundle, made_of(bundle))  # before it is copied, so that errors name the folder
    temporary = tempfile.TemporaryDirectory(prefix="dragoman-", ignore_cleanup_errors=True)
    copy = Path(shutil.copytree(bundle, temporary.name, dirs_exist_ok=True))
    if not export_of(copy).is_dir():
        export(copy)
    translator = Translator.load(copy)
    weakref.finalize(translator, temporary.cleanup)
    return translator


def export(copy: Path) -> None:
    """Write the CTranslate2 export of a bundle, if its model can be exported."""
    from dragoman.translation.export import export_bundle

    try:
        export_bundle(copy)
    except UserError as error:
        log.warning("note: %s; torch is used", error)

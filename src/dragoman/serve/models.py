"""Models of the server, each replaced when its folder holds a new bundle.

The bundle of a running training has no CTranslate2 export, so torch translates with it. The export at the end of the
training is a change too. A folder that vanishes or is damaged leaves the model in use.
"""

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.bundle import MANIFEST, locate
from dragoman.errors import UserError
from dragoman.languages import Direction, primary
from dragoman.translation.ctranslate2 import export_of
from dragoman.translation.translator import Translator

REFRESH_SECONDS = 1.0  # between two checks for new bundles
SAMPLES = {"zh": "好久不见", "en": "Long time no see."}  # translated by each new bundle, for /health and the page
log = logging.getLogger(__name__)


class Model:
    """The translator of one folder; `history` has an entry for each step loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.error, self.history = folder, "", dict[int | None, dict[str, Any]]()
        self._load()

    def status(self) -> dict[str, Any]:
        """Return the entry for /health."""
        entry = {**self.entry, "history": list(self.history.values())}
        return entry | ({"error": self.error} if self.error else {})

    def refresh(self) -> None:
        """Load the bundle if it has changed; if that fails, the old one stays in use."""
        try:
            if self._versions() != self._tried:
                self._load()
                self.error = ""
        except Exception as error:  # a damaged folder must not stop the server
            self.error = f"{error}. The model loaded before stays in use"
            log.warning("warning: %s", self.error)

    def _load(self) -> None:
        self._tried = self._versions()
        translator = Translator.load(self.folder)
        bundle, scores = translator.bundle, translator.bundle.meta.get("validation") or {}
        entry = {"name": bundle.meta.get("name") or self.folder.name, "engine": translator.engine}
        entry |= {"directions": list(map(str, bundle.directions))}
        entry |= {key: scores[key] for key in ("step", "bleu", "chrf") if key in scores}
        if sample := SAMPLES.get(primary(bundle.src)):
            (result,) = translator.translate([sample], direction=str(bundle.directions[0]))
            entry |= {"source": sample, "translation": result.text}
        self.translator, self.entry = translator, entry  # the next batch uses it
        self.history[scores.get("step")] = entry

    def _versions(self) -> list[int]:
        """Return the times at which the bundle and its export were written."""
        bundle = locate(self.folder)
        manifests = bundle / MANIFEST, export_of(bundle) / MANIFEST
        # Not by Path.exists(), which raises an error for a cache folder that may not be read.
        return [path.stat().st_mtime_ns for path in manifests if os.path.exists(path)]


class Models:
    """All models; each direction belongs to one."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.models, self._of = [Model(folder) for folder in folders], dict[Direction, Model]()
        for model in self.models:
            for direction in model.translator.bundle.directions:
                if self._of.setdefault(direction, model) is not model:
                    raise UserError(f"--model: several models translate {direction}. Name one of them")
        self.directions = list(self._of)
        sources, targets = zip(*self.directions, strict=True)
        self.languages = list(dict.fromkeys((*sources, *targets)))  # of all models, sources first

    def watch(self) -> None:
        """Take new bundles, as long as the program runs."""
        while True:
            time.sleep(REFRESH_SECONDS)
            for model in self.models:
                model.refresh()

    def translator(self, direction: Direction) -> Translator:
        """Return the translator of a direction, as it is now."""
        return self._of[direction].translator

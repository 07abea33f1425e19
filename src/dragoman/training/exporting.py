"""What a finished run does for those who will translate with it: an export of its bundle, made where it can be.

It knows that a run is finished with or without one, and refuses to know how an export is made.
"""

import importlib.util
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from dragoman.errors import UserError

log = logging.getLogger(__name__)


def export_bundle(folder: Path, sentences: Sequence[str], say: Callable[[str], None]) -> None:
    """The int8 export of the bundle at `folder`, proven on source `sentences`; one line to `say` how it went.

    Nothing is done or said where CTranslate2 is not installed. No failure gets out.
    """
    if importlib.util.find_spec("ctranslate2") is None:
        return
    try:
        from dragoman.export import ctranslate2

        say(ctranslate2.told(ctranslate2.export(folder, sentences)))
    except Exception as error:  # whatever it is, the model is trained and saved
        say(f"no CTranslate2 export: {error}")
        log.info("no CTranslate2 export", exc_info=not isinstance(error, UserError))

"""Dragoman: training and use of neural translation models.

from dragoman import Translator
translator = Translator.load("runs/zh_en")
print(translator.translate(["好久不见"])[0].text)
"""

from typing import TYPE_CHECKING, Any

from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.translation.translator import Translation, Translator

__version__ = "0.2.0"
__all__ = ["Translation", "Translator", "UserError", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the translator on first use, so that `import dragoman` is fast."""
    if name in ("Translator", "Translation"):
        from dragoman.translation import translator

        return getattr(translator, name)
    raise AttributeError(f"module 'dragoman' has no attribute '{name}'")

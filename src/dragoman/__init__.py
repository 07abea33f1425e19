"""Dragoman: training and use of neural translation models.

from dragoman import Translator
translator = Translator.load("runs/zh_en")
print(translator.translate(["好久不见"])[0].text)
"""

from dragoman.errors import UserError
from dragoman.translation.translator import Translation, Translator

__version__ = "0.2.0"
__all__ = ["Translation", "Translator", "UserError", "__version__"]

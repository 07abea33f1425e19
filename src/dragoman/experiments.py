"""The experiments by name, and the words of train.py's command line.

All that can be said about them before torch and Lightning are loaded, which takes seconds: so this module imports
neither, and refuses to know what a setting means (config.py does).
"""

from pathlib import Path

from dragoman.errors import UserError, suggest

CONFIGS = Path(__file__).parents[2] / "configs"
# Hydra's options, as far as they make sense here
WITH_VALUE = {"--cfg", "-c", "--package", "-p", "--info", "-i"}
ALONE = {"--help", "-h", "--hydra-help", "--version", "--resolve"}


def choices(group: str = "experiment") -> list[str]:
    """The files of a group in configs/, without their endings."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def settings(arguments: list[str]) -> list[str]:
    """Those of the arguments that are settings (key=value); the others are Hydra's options.

    Raises UserError for an experiment that does not exist and for words that are neither.
    """
    found = []
    words = iter(arguments)
    for word in words:
        if word in WITH_VALUE:
            next(words, None)
        elif word.startswith("-"):
            option, _, value = word.partition("=")
            if option not in WITH_VALUE | ALONE:
                meant = f": write {option.lstrip('-')}={value or '...'}" if option.lstrip("-") else ""
                raise UserError(f"there is no option '{option}'; settings have no dashes{meant}")
        elif "=" in word or word.startswith("~"):
            found.append(word)
        else:
            meant = f" (did you mean experiment={word}?)" if word in choices() else ""
            raise UserError(f"'{word}' is not a setting{meant}; settings are written key=value")
    named = [setting.removeprefix("experiment=") for setting in found if setting.startswith("experiment=")]
    for name in named:
        if name not in choices():
            raise UserError(
                f"there is no experiment '{name}'{suggest(name, choices())}; there are {', '.join(choices())}"
            )
    return found

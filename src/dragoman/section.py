"""Base of the configuration's dataclasses: settings with bounds or choices, checked when one is built."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dragoman.errors import UserError, check_choice


def number(default: float, lowest: float, highest: float = 1e12) -> Any:
    """A number within bounds, both included."""
    return field(default=default, metadata={"bounds": (lowest, highest)})


def one_of(*choices: str) -> Any:
    """A switch; the first choice is the default."""
    return field(default=choices[0], metadata={"choices": choices})


def list_of(*items: Any) -> Any:
    """A list with these items by default."""
    return field(default_factory=lambda: list(items))


@dataclass(kw_only=True)
class Section:
    """One part of the configuration; `prefix` leads its keys in messages."""

    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            key, value = f"{self.prefix}{setting.name}", getattr(self, setting.name)
            if "choices" in setting.metadata:
                check_choice(key, value, setting.metadata["choices"])
            if "bounds" in setting.metadata:
                lowest, highest = setting.metadata["bounds"]
                if not lowest <= value <= highest:  # false for NaN as well
                    allowed = f"at least {lowest:,}" if highest >= 1e9 else f"from {lowest:,} to {highest:,}"
                    raise UserError(f"{key}={value}: must be {allowed}")

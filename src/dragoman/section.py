"""Base class of the configuration: settings with bounds or choices."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dragoman.errors import UserError, check_choice


def number(default: float | None, lowest: float, highest: float = 1e12) -> Any:
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
    """One part of the configuration, checked when built; `prefix` is for messages."""

    prefix: ClassVar[str]

    def __init_subclass__(cls, prefix: str = "") -> None:
        cls.prefix = prefix

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            key, value = f"{self.prefix}{setting.name}", getattr(self, setting.name)
            if "choices" in setting.metadata:
                check_choice(key, value, setting.metadata["choices"])
            if "bounds" in setting.metadata and value is not None:
                lowest, highest = setting.metadata["bounds"]
                # The comparison is false for NaN too.
                if not lowest <= value <= highest:
                    allowed = f"at least {lowest:,}" if highest >= 1e9 else f"from {lowest:,} to {highest:,}"
                    raise UserError(f"{key}={value}: must be {allowed}")

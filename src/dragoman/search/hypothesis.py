"""What a search is given and what it returns: settings, sentences, the step function, hypotheses and their score.

It imports no torch: CTranslate2 searches by the same settings and returns the same hypotheses.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dragoman.errors import UserError, suggest

if TYPE_CHECKING:
    from torch import Tensor


class Sentence(NamedTuple):
    """number: among those searched together. line: in the whole input, which seeds sampling. max_length: EOS aside."""

    number: int
    line: int
    max_length: int


class Cache(Protocol):
    """What the model remembers of the rows of a batch."""

    def select(self, rows: "Tensor") -> None:
        """Keep these rows, in this order; repeats are allowed."""

    def join(self, other: Any) -> None:
        """The rows of another one after those here."""


# (the next token of each row (N, 1), cache) -> logits (N, V) for the one after it
Step = Callable[["Tensor", Any], "Tensor"]

KINDS = ("greedy", "beam", "sample")
_BOUNDS: dict[str, tuple[float, float]] = {  # beyond them are mistakes, and bundles made to fill the memory
    "beam_size": (1, 1_000),
    "length_penalty": (-10, 10),
    "n_best": (1, 1_000),
    "temperature": (0.001, 1_000),
    "top_k": (0, math.inf),
    "top_p": (1e-6, 1),
    "seed": (0, (1 << 63) - 1),
    "max_length_a": (0, 100),
    "max_length_b": (0, 10_000),
}


@dataclass(kw_only=True)
class SearchConfig:
    """How to look for a translation.

    length_penalty: scores are divided by length^length_penalty (as in CTranslate2); 0 favours short output.
    max_length_a, max_length_b: never more than a * (source pieces) + b pieces, EOS not counted.
    temperature, top_k, top_p, seed: for kind="sample"; each line has a random stream of its own.
    """

    kind: str = "beam"
    beam_size: int = 5
    length_penalty: float = 1.0
    n_best: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1
    max_length_a: float = 2.0
    max_length_b: int = 20

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(
                f"search.kind={self.kind}: choose one of {', '.join(KINDS)}{suggest(self.kind, KINDS)}"
            )
        for key, (least, most) in _BOUNDS.items():
            if not least <= getattr(self, key) <= most:  # neither is NaN
                allowed = f"from {least:,} to {most:,}" if most < math.inf else f"at least {least}"
                raise UserError(f"search.{key}={getattr(self, key)}: must be {allowed}")
        if self.kind == "beam" and self.n_best > self.beam_size:
            raise UserError(
                f"search.n_best={self.n_best} is more than search.beam_size={self.beam_size}: "
                "a beam holds no more hypotheses than its size"
            )
        if self.kind == "greedy" and self.n_best > 1:
            raise UserError(
                f"search.n_best={self.n_best}: greedy search has one answer; use kind=beam or sample"
            )
        if self.max_length_a + self.max_length_b <= 0:
            raise UserError("search.max_length_a and max_length_b must not both be 0")

    def max_length(self, source_length: int) -> int:
        """The most pieces a translation of `source_length` pieces may have."""
        return max(1, int(self.max_length_a * source_length + self.max_length_b))


@dataclass
class Hypothesis:
    """ids without BOS and EOS; token_scores are log-probabilities, the last one EOS's where it was reached."""

    ids: list[int]
    score: float
    token_scores: list[float]


def normalised(total: float, length: int, length_penalty: float) -> float:
    """The score of a hypothesis: sum of log-probabilities over length^length_penalty, EOS counted where it was reached.

    As in CTranslate2 4.8: the length is the number of log-probabilities.
    """
    return total / length**length_penalty


# is told of a sentence that is done: its number, its hypotheses, best first
Found = Callable[[int, list[Hypothesis]], object]


class Turn(NamedTuple):
    """What follows from a step."""

    tokens: "Tensor"  # (N, 1), of the rows that go on
    rows: "Tensor | None"  # (N,), which these were; None: all, as they are
    done: list[tuple[int, list[Hypothesis]]]  # what was found


class Books(Protocol):
    """What one kind of search writes down about the sentences of a batch."""

    n_rows: int  # of a sentence, when it begins

    def turn(self, logits: "Tensor") -> Turn:
        """logits (N, V) of all rows: choose."""

    def join(self, other: Any) -> None:
        """The rows of another one after those here. Neither is at its beginning."""


def closed_up(staying: Sequence[int]) -> list[int]:
    """The rows that stay, so ordered that the fewest move: the last ones take the places of those that have left."""
    kept, beyond = set(staying), [row for row in staying if row >= len(staying)]
    return [row if row in kept else beyond.pop() for row in range(len(staying))]

"""Input and output of a search. No torch is imported: every engine uses these."""

from typing import NamedTuple


class Sentence(NamedTuple):
    """Source sentence: `line` of the whole input; `max_length` without <EOS>."""

    line: int
    max_length: int


class Hypothesis(NamedTuple):
    """ids without <BOS> and <EOS>; token_scores: log-probs, a final <EOS> included."""

    ids: list[int]
    score: float
    token_scores: list[float]


def normalised(total: float, length: int, length_penalty: float) -> float:
    """Return total / length^length_penalty; as in CTranslate2, <EOS> counts."""
    return total / length**length_penalty

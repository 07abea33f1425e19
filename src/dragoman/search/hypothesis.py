"""Input and output of a search. No torch is imported: every engine uses these."""

from typing import NamedTuple


class Sentence(NamedTuple):
    """One source sentence: `line` is its number in the whole input, `max_length` counts no <EOS>."""

    line: int
    max_length: int


class Hypothesis(NamedTuple):
    """ids without <BOS> and <EOS>; token_scores are log-probs, the last one of <EOS> where it was reached."""

    ids: list[int]
    score: float
    token_scores: list[float]


def normalised(total: float, length: int, length_penalty: float) -> float:
    """Cumulative log-prob / length^length_penalty; the length counts <EOS> where it was reached, as in CTranslate2."""
    return total / length**length_penalty

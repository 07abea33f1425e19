"""Search for hypotheses: its input and output. No torch is imported here."""

from typing import NamedTuple


class Sentence(NamedTuple):
    """Source sentence: its number in the whole input; `max_length` without <EOS>."""

    number: int
    max_length: int


class Hypothesis(NamedTuple):
    """ids without <BOS> and <EOS>; token_scores: log-probs, a final <EOS> included."""

    ids: list[int]
    score: float
    token_scores: list[float]

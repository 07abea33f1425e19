"""Search for hypotheses: its input and output. No torch is imported here."""

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

"""Autoregressive decoding of a batch, from <BOS> to <EOS>.

Finished sentences leave the batch, and no sentence influences another.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from dragoman.config import SearchConfig
from dragoman.errors import choose
from dragoman.search.beam import Beam
from dragoman.search.greedy import Greedy, Sample
from dragoman.search.hypothesis import Hypothesis, Sentence
from dragoman.special import BOS

__all__ = ["SEARCHES", "Hypothesis", "SearchState", "Sentence", "search"]

# (next tokens (N, 1), cache) -> (logits (N, V) of those that follow, cache)
Step = Callable[[Tensor, Any], tuple[Tensor, Any]]


class SearchState(Protocol):
    """Interface of every kind of search; see `Greedy`."""

    def __init__(self, config: SearchConfig, sentences: Sequence[Sentence]) -> None: ...
    @staticmethod
    def width(config: SearchConfig) -> int: ...
    def advance(self, logits: Tensor) -> tuple[Tensor | None, Tensor]: ...
    def hypotheses(self) -> list[list[Hypothesis]]: ...


SEARCHES: dict[str, type[SearchState]] = {"greedy": Greedy, "beam": Beam, "sample": Sample}


def search(step: Step, cache: Any, sentences: Sequence[Sentence], config: SearchConfig) -> list[list[Hypothesis]]:
    """Return the hypotheses of the sentences of one batch; `cache` has no tokens yet."""
    kind = choose("search.kind", config.kind, SEARCHES)
    state = kind(config, sentences)
    tokens = torch.full((len(sentences) * kind.width(config), 1), BOS)
    while len(tokens):
        logits, cache = step(tokens, cache)
        rows, tokens = state.advance(logits)
        if rows is not None:
            cache.select(rows)
    return state.hypotheses()

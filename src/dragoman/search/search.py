"""The one door to all searches."""

from collections.abc import Sequence

from dragoman.search.beam import beam_search
from dragoman.search.greedy import greedy_search, sample_search
from dragoman.search.hypothesis import Cache, Hypothesis, SearchConfig, Step

__all__ = ["Hypothesis", "SearchConfig", "search"]


def search(
    step: Step,
    cache: Cache,
    config: SearchConfig,
    *,
    max_lengths: Sequence[int],
    lines: Sequence[int],
) -> list[list[Hypothesis]]:
    """Search len(max_lengths) sentences at once -> n_best hypotheses each, best first.

    `lines` number the sentences in the whole input: a sampled line draws from its own stream whatever its
    batch-mates are.
    """
    if config.kind == "sample":
        return sample_search(step, cache, config, max_lengths=max_lengths, lines=lines)
    if config.kind == "greedy" or config.beam_size == 1:
        return greedy_search(step, cache, config, max_lengths=max_lengths)
    return beam_search(step, cache, config, max_lengths=max_lengths)

"""Search for hypotheses by a `step` function, independent of models and text.

    step(tokens (N, 1), cache) -> logits (N, V), cache

A search uses the cache only by `cache.select(rows)`: keep these rows, in this order. N = B * k: the k rows of a
sentence, its beams or samples, are consecutive.
"""

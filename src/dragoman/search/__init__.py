"""ids by ids, by search. A search sees a `step` function, never a model and never text.

    step(tokens (N, 1), cache) -> logits (N, V), cache

The cache is opaque but for `cache.select(rows)`: keep these rows, in this order. N = B * k: the k rows of a sentence,
its beams or samples, stand side by side.
"""

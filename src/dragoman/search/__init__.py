"""ids by ids, by best guess. A search sees a `step` function, never a model and never text.

    step(tokens (N, 1), cache) -> (logits (N, V), cache)

`cache` is opaque but for `cache.select(rows)`: keep these rows, in this order, repeats allowed.
"""

"""From batches to a bundle: Lightning runs the loop, this package adds what is particular to translation."""

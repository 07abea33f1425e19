"""The data doctor: faults of a corpus, reported before training."""

"""Training: from batches to a bundle, in Lightning's loop."""

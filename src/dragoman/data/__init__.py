"""Data: from text to ids to batches, independent of models."""

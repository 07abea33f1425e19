"""Figures, pages, costs, word vectors, traces, examples of the study notes."""

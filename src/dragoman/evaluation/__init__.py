"""Test sets, scores of a bundle on them, comparison of systems, report of a run."""

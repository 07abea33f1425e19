"""Test sets (testsets.py) and the scores of a bundle on them (scores.py)."""

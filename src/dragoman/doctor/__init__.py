"""The data doctor: faults of a corpus, reported before training.

survey     one pass, a row of numbers per pair    findings  faults with their rows, suspicious pairs
alignment  drift between the two sides            report    plain data, web page, terminal
"""

"""The data doctor: faults of a corpus, reported before training.

survey     one pass, numbers for each pair        findings  faults with their rows, suspicious pairs
alignment  drift between the two sides            report    plain data, web page, terminal
"""

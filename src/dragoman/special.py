"""Special ids of every vocabulary."""

PAD = 0
UNK = 1
BOS = 2
EOS = 3

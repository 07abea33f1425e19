"""The four special ids. They are written here and nowhere else; the tokenizer is trained to agree."""

PAD = 0
UNK = 1
BOS = 2
EOS = 3

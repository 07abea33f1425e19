"""The four special ids; the tokenizer is trained with the same ones."""

PAD = 0
UNK = 1
BOS = 2
EOS = 3

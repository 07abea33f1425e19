"""The Transformer: ids -> logits.

Read in this order: position, attention, cache, layers, transformer. Shapes in every file:
    B  sentences in a batch          N  rows of the decoder: B, or k beams for each sentence
    S  source length                 T  target length (T_q queries, T_k keys)
    D  d_model                       H  n_heads            d  d_head = D / H
    F  d_ff                          V  vocabulary size
"""

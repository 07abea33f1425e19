"""ids -> logits. Tensors only: no text, no Batch, no Lightning.

Shapes, used in every file of this room:
    B  sentences in a batch          N  rows of a search (sentences x beams)
    S  source length                 T  target length (T_q queries, T_k keys)
    D  d_model                       H  n_heads            d  d_head = D / H
    F  d_ff                          V  vocabulary size
"""

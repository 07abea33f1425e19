"""The Transformer: ids -> logits.

Read position, attention, layers, transformer, cache. The encoder returns the memory, the decoder states. Shapes:
    B  sentences in a batch          N  rows of the decoder: B, or k beams for each sentence
    S  source length                 T  target length (T_q queries, T_k keys)
    D  d_model                       H  n_heads            d  d_head = D / H, the notes' d_k
    F  d_ff                          V  vocabulary size
"""

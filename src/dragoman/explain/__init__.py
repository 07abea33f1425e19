"""Figures, pages and cost tables of a model, and pretrained word vectors.

attention_map  weights of every layer and head      cost     parameters, FLOPs, memory
picture        PNG figures                          vectors  word-vector files
page           the attention maps as one web page
"""

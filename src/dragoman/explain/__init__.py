"""Pictures, pages and tables that explain a model, and the word vectors that its embeddings may start from.

attention_map  weights of every layer and head      cost     parameters, FLOPs, memory
picture        PNG figures                          vectors  word-vector files
page           the attention maps as one web page
"""

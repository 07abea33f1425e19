"""Figures, pages, costs, word vectors, traces and worked examples.

attention_map  weights of every layer and head      cost     parameters, FLOPs, memory
picture        PNG figures                          vectors  word-vector files
page           templates; the attention maps        trace    each step of one translation
                                                    notes    worked examples of the study notes
"""

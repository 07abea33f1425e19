"""Dragoman trains translation models: a parallel corpus in, a translator out.

The rooms, from the bottom up (a room may call only those before it):
special, errors, masks, metrics, picture, page -> data | model -> search, description, bundle, attention_map, attended,
torch_engine, sentence_vectors -> translator -> training -> config -> the doors train.py, translate.py and scripts/.
"""

__version__ = "0.1.0"

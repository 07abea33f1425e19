"""Data: from text to ids to batches, independent of models.

text        lines, pairs, clean text, sentences         prepare     cleaned and encoded corpora, on disk
readers     corpora by name; their formats: READERS     store       memory-mapped rows
cleaning    repairs, filters, duplicates, the report    collate     batch plans; ids to one padded Batch
tokenizer   text to ids and back                        datamodule  all of it as a LightningDataModule
"""

"""Data: from text to ids to batches, independent of models.

text        lines, sentence pairs, clean text           store       memory-mapped rows
readers     formats of corpus files: READERS            batching    lengths to batch plans
corpora     files, folders and hub datasets by name     collate     ids to one padded Batch
cleaning    repairs, filters, duplicates, the report    datamodule  all of it as a LightningDataModule
tokenizer   text to ids and back                        sentences   long texts to sentences
prepare     cleaned and encoded corpora, on disk        lexicon     which pieces translate which
processes   work on chunks in several processes
"""

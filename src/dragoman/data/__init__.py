"""The data room: text to ids to batches. It knows nothing of models.

corpus      what a pair and a clean sentence are        tokenizer   text to ids and back
sources     where a corpus lies: file, folder, hub      splits      duplicates, leaks, cuts: arithmetic on hashes
folders     which files of a folder are which split     batching    lengths to plans of batches
readers     files to raw rows                           collate     ids to one padded Batch
tables      parquet, and the hub's, to raw rows         digests     sha256 of files, remembered
hub         datasets.load_dataset, and its absence      vocabulary  sentencepiece models, looked at first
cleaning    mend, drop, count                           store       rows on disk, memory-mapped
texts       sources to clean sentences on disk          stream      a plan and a store to endless batches
encoding    clean sentences to ids on disk              datamodule  all of it, as Lightning asks for it
prepare     the steps in order, cached                  sentences   long texts to sentences
"""

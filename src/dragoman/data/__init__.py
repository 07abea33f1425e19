"""The data room: text to ids to batches. It knows nothing of models.

corpus      what a pair and a clean sentence are        tokenizer   text to ids and back
sources     where a corpus lies: file, folder, hub      splits      duplicates, leaks, cuts: arithmetic on hashes
readers     files to raw rows                           batching    lengths to plans of batches
hub         datasets.load_dataset, and its absence      collate     ids to one padded Batch
cleaning    mend, drop, count                           store       rows on disk, memory-mapped
texts       sources to clean sentences on disk          stream      a plan and a store to endless batches
encoding    clean sentences to ids on disk              datamodule  all of it, as Lightning asks for it
prepare     the steps in order, cached                  sentences   long texts to sentences
"""

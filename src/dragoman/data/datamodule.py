"""The data of a run as a LightningDataModule.

Training uses an endless stream of batches, validation a finite list; a checkpoint stores the position in the stream.
Batch number n depends on the seed and n alone, not on earlier batches, the number of workers, or interruptions.
"""

import signal
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from lightning import LightningDataModule
from torch.utils.data import DataLoader, Dataset

from dragoman.config import DataConfig
from dragoman.data.collate import Batch, BatchPlan, collate, length_batches
from dragoman.data.prepare import Prepared, prepare

# Epoch, and the pairs of a batch: of n pairs, i < n is pair i forwards, and n + i the same pair backwards.
BatchIndex = tuple[int, np.ndarray]


class BatchDataset(Dataset[Batch]):
    """Batches by BatchIndex; `tags` (n_directions, 1 or 0) are ids before sources."""

    def __init__(self, prepared: Prepared, config: DataConfig, seed: int, tags: np.ndarray) -> None:
        self._alpha, self._max_length = config.tokenizer.sampling, config.max_length
        self._seed, self._tags, self._ids = seed, tags, prepared.train_ids
        self._tokenizers = prepared.src_tokenizer, prepared.tgt_tokenizer
        # (pairs per epoch,) pairs of the ids; a corpus may be repeated.
        self.pairs = np.repeat(np.arange(len(prepared.repeats)), prepared.repeats)

    def __getitem__(self, index: BatchIndex) -> Batch:
        epoch, pairs = index
        directions, places = np.divmod(pairs, len(self.pairs))
        src = 2 * self.pairs[places] + directions
        # The sides of pair i are the rows 2i and 2i + 1.
        tgt, tags = src ^ 1, self._tags[directions]
        if self._alpha:
            return collate(self._samples(src, pairs, epoch), self._samples(tgt, pairs, epoch), tags)
        src_ids, tgt_ids = ([self._ids[row] for row in rows.tolist()] for rows in (src, tgt))
        return collate(src_ids, tgt_ids, tags)

    def _samples(self, rows: np.ndarray, pairs: np.ndarray, epoch: int) -> list[list[int]]:
        """Return random tokenisations, which depend on seed, epoch and pair alone.

        They may be longer than the stored ids, by which batches are planned. A sample of more than max_length pieces is
        replaced by the stored ids, since a position scheme may have a limit.
        """
        samples = []
        for row, pair in zip(rows.tolist(), pairs.tolist(), strict=True):
            tokenizer, ids = self._tokenizers[row % 2], self._ids[row].tolist()
            seed = zlib.crc32(f"{self._seed} {epoch} {pair} {('src', 'tgt')[row % 2]}".encode())
            sample = tokenizer.sample(tokenizer.decode(ids), alpha=self._alpha, seed=seed)
            samples.append(sample if len(sample) <= self._max_length else ids)
        return samples


def _ignore_signals(worker: int) -> None:
    """Block stop signals in a worker, so that it lives until the run is saved."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1})


class TranslationData(LightningDataModule):
    """The corpora of `config` as batches, prepared at once or taken from the cache.

    `run_dir` receives the cleaning report and the record of the corpora. `consumed` counts the batches this rank has
    trained on. The training module increases it after each batch, so prefetched batches are fetched again on resume.
    """

    def __init__(self, config: DataConfig, run_dir: Path, seed: int) -> None:
        super().__init__()
        self.config, self.seed, self.directions = config, seed, config.every_direction
        prepared = prepare(config, Path(run_dir))
        self.src_tokenizer, self.tgt_tokenizer = prepared.src_tokenizer, prepared.tgt_tokenizer
        self.fingerprint, self.notes = prepared.fingerprint(), prepared.notes
        self.validation, self.test = prepared.pairs("validation"), prepared.pairs("test")
        self._tags = np.array([self.src_tokenizer.tag(to.tgt) for to in self.directions], np.int64)
        self._dataset, self.train_ids = BatchDataset(prepared, config, seed, self._tags), prepared.train_ids
        # Pairs of an epoch in each direction; repeated pairs count each time.
        self.train_size = len(self._dataset.pairs)
        sides = np.diff(self.train_ids.offsets).astype(np.int32).reshape(-1, 2)[self._dataset.pairs].T + 1
        n_directions, n_tags = self._tags.shape
        # Lengths of sources and targets of an epoch, special ids included.
        self.lengths = np.concatenate(sides[:n_directions]) + n_tags, np.concatenate(sides[::-1][:n_directions])
        self.consumed = 0

    @property
    def plan(self) -> BatchPlan:
        """The batch plan of the rank of the attached trainer; else of a single rank."""
        place = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        return BatchPlan(*self.lengths, self.config.max_tokens, self.seed, *place)

    def _indices(self) -> Iterator[BatchIndex]:
        """Yield the indices of all batches from number `consumed` on, without end."""
        plan = self.plan
        epoch, position = divmod(self.consumed, plan.batches_per_epoch)
        while True:
            for pairs in plan.epoch(epoch)[position:]:
                yield epoch, pairs
            epoch, position = epoch + 1, 0

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the endless stream of batches, from number `consumed` on."""
        # An index is a whole batch.
        return DataLoader(
            self._dataset,
            batch_size=None,
            sampler=self._indices(),
            num_workers=self.config.workers,
            worker_init_fn=_ignore_signals,
        )

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return all validation pairs, in every direction, on every rank, longest first.

        Pairs longer than data.max_length are left out, since positions may have a limit. They stay in `validation`,
        to be translated and scored.
        """
        src = self.src_tokenizer.encode_batch([pair.src for pair in self.validation])
        tgt = self.tgt_tokenizer.encode_batch([pair.tgt for pair in self.validation])
        pairs = [pair for pair in zip(src, tgt, strict=True) if max(map(len, pair)) <= self.config.max_length]
        # All pairs in each direction, with its tag.
        rows = [([*tag, *pair[side]], pair[1 - side]) for side, tag in enumerate(self._tags.tolist()) for pair in pairs]
        batches = length_batches([max(map(len, row)) + 1 for row in rows], self.config.max_tokens)
        collated = [collate([rows[i][0] for i in batch], [rows[i][1] for i in batch]) for batch in batches]
        return DataLoader(collated, batch_size=None)  # type: ignore[arg-type]  # Lightning takes a list for several

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training, for a checkpoint."""
        return {"consumed": self.consumed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume at a checkpoint; training/fit.py has compared the fingerprints."""
        self.consumed = state_dict["consumed"]

"""The data of a run as a LightningDataModule.

Training uses an endless stream of batches, validation a finite list; a checkpoint stores the position in the stream.
Batch number n depends on the seed and n alone, not on earlier batches, the number of workers, or interruptions.
"""

import signal
from pathlib import Path
from typing import Any

import numpy as np
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from dragoman.config import DataConfig
from dragoman.data.collate import Batch, BatchDataset, BatchPlan, collate, length_batches
from dragoman.data.prepare import prepare


def _block_signals(worker: int) -> None:
    """Block stop signals in a worker, so that it lives until the run is saved."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1})


class TranslationData(LightningDataModule):
    """The corpora of `config` as batches, prepared at once or taken from the cache.

    `run_dir` receives the cleaning report and the record of the corpora. `consumed` counts the batches this rank has
    trained on. The training module increases it in each step, so prefetched batches are fetched again on resume.
    """

    def __init__(self, config: DataConfig, run_dir: Path, seed: int, *, max_bucket: int = 0) -> None:
        super().__init__()
        self.config, self.seed, self.directions = config, seed, config.every_direction
        prepared = prepare(config, run_dir)
        self.src_tokenizer, self.tgt_tokenizer = prepared.src_tokenizer, prepared.tgt_tokenizer
        self.fingerprint, self.notes, self.train_ids = prepared.fingerprint(), prepared.notes, prepared.train_ids
        self.validation, self.test = prepared.pairs("validation"), prepared.pairs("test")
        self._tags = np.array([self.src_tokenizer.tag(to.tgt) for to in self.directions], np.int64)
        # Pairs of an epoch in each direction; repeated pairs count each time.
        pairs = np.repeat(np.arange(len(prepared.repeats)), prepared.repeats)
        self.train_size, (n_directions, n_tags) = len(pairs), self._tags.shape
        self._sources = np.concatenate([2 * pairs + direction for direction in range(n_directions)])
        self._dataset = BatchDataset(prepared, config, seed, self._sources, self._tags, max_bucket)
        # Lengths of sources and targets of an epoch, special ids included.
        n_ids = np.diff(self.train_ids.offsets).astype(np.int32) + 1
        self.lengths = n_ids[self._sources] + n_tags, n_ids[self._sources ^ 1]
        self.consumed, self._max_bucket = 0, max_bucket

    @property
    def plan(self) -> BatchPlan:
        """The batch plan of the rank of the attached trainer; else of a single rank."""
        place = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        return BatchPlan(self.lengths, self.config.max_tokens, self.seed, *place, self._max_bucket)

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the endless stream of batches, from number `consumed` on."""
        # An index is a whole batch.
        sampler, workers = self.plan.stream(self.consumed), self.config.workers
        return DataLoader(self._dataset, None, sampler=sampler, num_workers=workers, worker_init_fn=_block_signals)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the validation pairs in every direction, on every rank, longest first.

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
        return DataLoader(collated, batch_size=None)  # type: ignore[arg-type]  # to Lightning, a list is several

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training, for a checkpoint."""
        return {"consumed": self.consumed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume at a checkpoint; training/fit.py has compared the fingerprints."""
        self.consumed = state_dict["consumed"]

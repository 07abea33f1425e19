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
from dragoman.data.collate import Batch, BatchPlan, Ids, collate, length_batches
from dragoman.data.prepare import Prepared, prepare

# Epoch, the places of the pairs of a batch in it, and the rows of their sources.
BatchIndex = tuple[int, np.ndarray, np.ndarray]


class BatchDataset(Dataset[Batch]):
    """Batches by BatchIndex; `tags` (n_directions, 1 or 0) precede the sources."""

    def __init__(self, prepared: Prepared, config: DataConfig, seed: int, tags: np.ndarray, few_shapes: int) -> None:
        self._alpha, self._lowercase = config.tokenizer.sampling, config.lowercase
        self._max_length, self._few_shapes = config.max_length, few_shapes
        self._seed, self._tags, self._ids = seed, tags, prepared.train_ids
        self._tokenizers = prepared.src_tokenizer, prepared.tgt_tokenizer

    def __getitem__(self, index: BatchIndex) -> Batch:
        epoch, places, src = index
        # The sides of pair i are the rows 2i and 2i + 1; backwards, the second is the source.
        rows = list(zip(src.tolist(), places.tolist(), strict=True))
        src_ids, tgt_ids = ([self._tokens(row, side, epoch, place) for row, place in rows] for side in (0, 1))
        src_ids = list(map(np.append, self._tags[src % 2], src_ids))
        return collate(src_ids, tgt_ids, few_shapes=self._few_shapes)

    def _tokens(self, src: int, side: int, epoch: int, place: int) -> Ids:
        """Return the ids of a side (0 = source): as stored, in lower case, or a sample.

        The draw depends on seed, epoch, place and row alone. It may be longer than the stored ids, by which batches
        are planned. With more than max_length pieces it is replaced by them, since a position scheme may have a limit.
        """
        row = src ^ side
        ids, tokenizer = self._ids[row], self._tokenizers[row % 2]
        seed = zlib.crc32(f"{self._seed} {epoch} {place} {row}".encode())
        lower = side == 0 and seed < self._lowercase * 2**32
        if not (self._alpha or lower):
            return ids
        text = tokenizer.decode(ids.tolist())
        text = text.lower() if lower else text
        drawn = tokenizer.sample(text, alpha=self._alpha, seed=seed) if self._alpha else tokenizer.encode(text)
        return drawn if len(drawn) <= self._max_length else ids


def _ignore_signals(worker: int) -> None:
    """Block stop signals in a worker, so that it lives until the run is saved."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1})


class TranslationData(LightningDataModule):
    """The corpora of `config` as batches, prepared at once or taken from the cache.

    `run_dir` receives the cleaning report and the record of the corpora. `consumed` counts the batches this rank has
    trained on. The training module increases it after each batch, so prefetched batches are fetched again on resume.
    """

    def __init__(self, config: DataConfig, run_dir: Path, seed: int, *, few_shapes: int = 0) -> None:
        super().__init__()
        self.config, self.seed, self.directions = config, seed, config.every_direction
        prepared = prepare(config, Path(run_dir))
        self.src_tokenizer, self.tgt_tokenizer = prepared.src_tokenizer, prepared.tgt_tokenizer
        self.fingerprint, self.notes = prepared.fingerprint(), prepared.notes
        self.validation, self.test = prepared.pairs("validation"), prepared.pairs("test")
        self._tags = np.array([self.src_tokenizer.tag(to.tgt) for to in self.directions], np.int64)
        self._dataset, self.train_ids = BatchDataset(prepared, config, seed, self._tags, few_shapes), prepared.train_ids
        # Pairs of an epoch in each direction; repeated pairs count each time.
        pairs = np.repeat(np.arange(len(prepared.repeats)), prepared.repeats)
        self.train_size, (n_directions, n_tags) = len(pairs), self._tags.shape
        self._sources = np.concatenate([2 * pairs + direction for direction in range(n_directions)])
        # Lengths of sources and targets of an epoch, special ids included.
        n_ids = np.diff(self.train_ids.offsets).astype(np.int32) + 1
        self.lengths = n_ids[self._sources] + n_tags, n_ids[self._sources ^ 1]
        self.consumed, self._few_shapes = 0, few_shapes

    @property
    def plan(self) -> BatchPlan:
        """The batch plan of the rank of the attached trainer; else of a single rank."""
        place = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        return BatchPlan(self.lengths, self.config.max_tokens, self.seed, *place, self._few_shapes)

    def _indices(self) -> Iterator[BatchIndex]:
        """Yield the indices of all batches from number `consumed` on, without end."""
        plan = self.plan
        epoch, position = divmod(self.consumed, plan.batches_per_epoch)
        while True:
            for pairs in plan.epoch(epoch)[position:]:
                yield epoch, pairs, self._sources[pairs]
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

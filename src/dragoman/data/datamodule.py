"""The data of a run, as Lightning asks for it.

Knows: that training wants an endless stream that continues where it stopped, validation a finite list, and a
checkpoint the position in between. Everything else is done by the rooms before: prepare.py (once), stream.py
(per batch).
Refuses to know: models, losses, how a corpus is read.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from lightning import LightningDataModule

from dragoman.data.batching import Planner, edges, sorted_rows
from dragoman.data.collate import Batch, collate
from dragoman.data.corpus import Pair
from dragoman.data.prepare import DataConfig, Prepared, prepare
from dragoman.data.store import Texts
from dragoman.data.stream import BatchStream, Gather, Sampling
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.languages import Direction

__all__ = ["DataConfig", "TranslationData"]


class TranslationData(LightningDataModule):
    """The corpora of `config` as batches; `run_dir` receives the report and the record of what was used.

    `consumed` counts the batches this rank has trained on. The training module raises it after each batch,
    not the stream: what workers fetched ahead and nobody trained on is fetched again after an interruption.
    """

    def __init__(self, config: DataConfig, run_dir: Path, seed: int) -> None:
        super().__init__()
        self.config, self.run_dir, self.seed = config, Path(run_dir), seed
        self.consumed = 0
        self._done: Prepared | None = None

    def prepare(self) -> None:
        """Read, clean, split, train the tokenizer, encode: whatever of it the cache does not hold yet."""
        if self._done is None:
            self._done = prepare(self.config, self.run_dir)

    def setup(self, stage: str) -> None:
        """Lightning's name for being ready."""
        self.prepare()

    @property
    def prepared(self) -> Prepared:
        """What `prepare` made."""
        if self._done is None:
            raise RuntimeError("call prepare() first")
        return self._done

    @property
    def src_tokenizer(self) -> Tokenizer:
        """Of the source; with a joint vocabulary the same object as that of the target."""
        return self.prepared.src_tokenizer

    @property
    def tgt_tokenizer(self) -> Tokenizer:
        """Of the target."""
        return self.prepared.tgt_tokenizer

    @property
    def fingerprint(self) -> str:
        """sha256 of all that training will see."""
        return self.prepared.fingerprint

    @property
    def report(self) -> dict[str, object]:
        """What was read, mended, dropped and kept."""
        return self.prepared.report.as_dict()

    @property
    def notes(self) -> list[str]:
        """What a person should know about this data, e.g. that an optional corpus was not to be had."""
        return self.prepared.notes

    @cached_property
    def validation(self) -> Sequence[Pair]:
        """The validation pairs as text, with all references."""
        return self.prepared.pairs("validation")

    @cached_property
    def test(self) -> Sequence[Pair]:
        """The test pairs as text, with all references."""
        return self.prepared.pairs("test")

    @property
    def train_size(self) -> int:
        """Training pairs, each seen once per epoch and direction; those of a corpus with repeat=3 count three times."""
        return len(self._index)

    @property
    def directions(self) -> list[Direction]:
        """What is learnt: src to tgt, and tgt to src where data.directions names both."""
        return self.config.every_direction

    @property
    def batches_per_epoch(self) -> int:
        """Batches of this rank in one epoch."""
        return self._planner.batches_per_epoch

    @property
    def padding_share(self) -> float:
        """Share of an epoch's positions, both sides, that are padding."""
        return self._planner.padding_share

    @property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of source and target of each pair of an epoch, in every direction, as the model sees them."""
        sides = [side.lengths()[self._index] + 1 for side in self._ids]  # <EOS>, or <BOS>
        n_directions, n_tags = self._tags.shape
        return np.concatenate(sides[:n_directions]) + n_tags, np.concatenate(sides[::-1][:n_directions])

    @property
    def batch_shapes(self) -> list[list[float]]:
        """Of each batch of an epoch, the longest first: rows, positions of src and of tgt, tokens of tgt.

        With data.packing=flat: pairs and their mean lengths, since no pair sees another.
        """
        return self._planner.shapes.tolist()

    def train_dataloader(self) -> BatchStream:
        """Batches without end, from number `consumed` on."""
        done, src, tgt = self.prepared, *self._ids
        gather = Gather(src=src, tgt=tgt, seed=self.seed, index=self._index, tags=self._tags)
        if self.config.tokenizer.sampling:
            gather.sampling = Sampling(
                alpha=self.config.tokenizer.sampling,
                max_length=self.config.max_length,
                src_texts=Texts(done.texts / "train.src"),
                tgt_texts=Texts(done.texts / "train.tgt"),
                rows=np.load(done.ids / "rows.npy", mmap_mode="r"),
                src_tokenizer=done.src_tokenizer,
                tgt_tokenizer=done.tgt_tokenizer,
            )
        return BatchStream(
            gather=gather,
            planner=self._planner,
            consumed=lambda: self.consumed,
            workers=self.config.workers,
        )

    def val_dataloader(self) -> "ValidationBatches":
        """The validation pairs in every direction, longest first, the whole of them on every rank.

        Left out are pairs longer than data.max_length: the model has never seen such, and a position table
        may not reach so far. They stay in `validation`, to be translated and scored.
        """
        return self._validation_batches

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"consumed": self.consumed, "fingerprint": self.fingerprint}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where a checkpoint stopped. Raises `UserError` when the data is no longer the same."""
        self.prepare()
        if state_dict["fingerprint"] != self.fingerprint:
            raise UserError(
                f"the data has changed since the checkpoint in {self.run_dir} was written (fingerprint "
                f"{state_dict['fingerprint'][:12]} then, {self.fingerprint[:12]} now); start a run of another name"
            )
        self.consumed = state_dict["consumed"]

    @property
    def _place(self) -> tuple[int, int]:
        """This process's rank among how many."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    @cached_property
    def _ids(self) -> tuple[Any, Any]:
        return self.prepared.train_ids()

    @cached_property
    def _index(self) -> np.ndarray:
        return self.prepared.index()

    @cached_property
    def _tags(self) -> np.ndarray:
        """(directions, 1 or 0) int64, see Gather."""
        return np.array([self.src_tokenizer.tag(direction.tgt) for direction in self.directions], np.int64)

    @property
    def _planner(self) -> Planner:
        place = self._place  # known only once a trainer is attached
        if place not in self._planners:
            src, tgt = self.lengths
            rank, world_size = place
            self._planners[place] = Planner(
                src,
                tgt,
                self.config.max_tokens,
                self.seed,
                rank,
                world_size,
                row_tokens=self.config.row_tokens,
            )
        return self._planners[place]

    @cached_property
    def _planners(self) -> dict[tuple[int, int], Planner]:
        return {}

    @cached_property
    def _validation_batches(self) -> "ValidationBatches":
        pairs = list(self.validation)
        src = self.src_tokenizer.encode_batch([pair.src for pair in pairs])
        tgt = self.tgt_tokenizer.encode_batch([pair.tgt for pair in pairs])
        fitting = [i for i in range(len(pairs)) if max(len(src[i]), len(tgt[i])) <= self.config.max_length]
        sides = [[side[i] for i in fitting] for side in (src, tgt)]
        read = [[*tag, *ids] for tag, side in zip(self._tags.tolist(), sides, strict=False) for ids in side]
        written = [ids for _, side in zip(self._tags, sides[::-1], strict=False) for ids in side]
        return ValidationBatches(read, written, self.config.max_tokens)


class ValidationBatches:
    """A finite list of batches over given ids, sorted by length, made when asked for."""

    def __init__(self, src: list[list[int]], tgt: list[list[int]], max_tokens: int) -> None:
        self._src, self._tgt = src, tgt
        src_lengths, tgt_lengths = (
            np.fromiter(map(len, side), np.int64, len(side)) + 1 for side in (src, tgt)
        )
        rows = self._rows = sorted_rows(src_lengths, tgt_lengths)
        self._edges = edges(np.maximum(src_lengths, tgt_lengths)[rows], max_tokens).tolist()

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __iter__(self) -> Iterator[Batch]:
        for start, stop in itertools.pairwise(self._edges):
            rows = self._rows[start:stop].tolist()
            yield collate([self._src[i] for i in rows], [self._tgt[i] for i in rows])

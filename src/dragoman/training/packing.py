"""Packed batches in training: what "auto" is on this machine, and how a batch tells the model who belongs together.

Between a batch, which knows pairs, and a model, which knows segments or runs. How pairs are put into rows is the data
room's business (batching.py, collate.py), what is done with them the model's (masks.py, varlen.py).
"""

from typing import TYPE_CHECKING

from torch import Tensor

from dragoman.data.collate import Batch
from dragoman.errors import UserError
from dragoman.model.varlen import Runs, refusal

if TYPE_CHECKING:
    from dragoman.config import Config


def packing_for(config: "Config", accelerator: str, precision: str) -> str:
    """What data.packing=auto is here. Raises UserError where "flat" was asked for and cannot be."""
    wanted = config.data.packing
    if wanted not in ("auto", "flat"):
        return wanted
    why = refusal(config.model, accelerator=accelerator, precision=precision)
    if why is None:
        return "flat"
    if wanted == "flat":
        raise UserError(
            f"data.packing=flat needs attention of variable length: {why}. Use data.packing=rows, which packs with "
            "masks, or off"
        )
    return "off"


def segments_of(batch: Batch) -> tuple[Tensor | Runs | None, Tensor | Runs | None]:
    """What keeps the pairs of a row apart, for source and target: on a GPU the runs of a single row, else numbers."""
    if batch.src_starts is None or batch.tgt_starts is None or not batch.src.is_cuda:
        return batch.src_segments, batch.tgt_segments
    return Runs(batch.src_starts, batch.longest), Runs(batch.tgt_starts, batch.longest)

"""The GPU benchmark holds its variants against each other before it times them: that must be able to fail."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dragoman.data.collate import Batch, pack

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import gpu_cells  # noqa: E402

PHRASES = ROOT / "data" / "phrasebook" / "handwritten" / "people.tsv"


def no_masks(batch: Batch) -> Batch:
    return dataclasses.replace(batch, src_segments=None, tgt_segments=None)


def positions_go_on(batch: Batch) -> Batch:
    return dataclasses.replace(batch, src_positions=None, tgt_positions=None)


def source_of_the_neighbour(batch: Batch) -> Batch:
    assert batch.tgt_segments is not None
    return dataclasses.replace(batch, tgt_segments=batch.tgt_segments - (batch.tgt_segments > 1).long())


@pytest.mark.parametrize(
    ("spoil", "right"),
    [
        (lambda batch: batch, True),
        (no_masks, False),
        (positions_go_on, False),
        (source_of_the_neighbour, False),
    ],
)
def test_packing_that_computes_something_else_is_not_measured(
    spoil: Callable[[Batch], Batch], right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spoilt(batch: Batch, rows: np.ndarray) -> Batch:
        seen.append(rows)
        return spoil(pack(batch, rows))

    monkeypatch.setattr(gpu_cells, "pack", spoilt)
    found = gpu_cells.losses(
        {
            "size": "tiny", "tokens": 512, "device": "cpu", "precision": "32", "corpus": str(PHRASES),
            "cache": str(tmp_path), "workers": 0, "max_length": 60, "vocab_size": 900, "packings": ["off", "rows"],
            "compiles": [False], "changes": ["data.tokenizer.kind=char"],
        }
    )  # fmt: skip
    assert found["agree"] == {"padded, 32": True, "off, eager": True, "rows, eager": right}
    assert any((np.diff(rows) == 0).any() for rows in seen)  # several pairs did share a row


def test_the_ceiling_is_a_rate_of_real_products() -> None:
    assert gpu_cells.matrix_ceiling(torch.device("cpu"), "32", 64) > 0

"""What can go wrong within an optimizer step, and what is left behind for whoever must find out why.

Knows: how a lack of memory is told from other errors, how a batch is divided, what a diagnosis folder holds.
Refuses to know: when a step is skipped or tried again (module.py), when a run is saved (keeper.py).
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dragoman.data.collate import Batch, collate, pairs_of
from dragoman.data.tokenizer import Tokenizer

_NO_MEMORY = ("can't allocate memory", "out of memory")  # the CPU's allocator; that of mps


def out_of_memory(error: BaseException) -> bool:
    """Whether there was too little memory, on whatever device; torch has a class for it on GPUs only."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def halves(batch: Batch) -> list[Batch]:
    """The pairs of a batch of at least two in two batches on the same device, padded rather than packed."""
    pairs = pairs_of(batch)
    middle = (len(pairs) + 1) // 2
    return [
        collate([src for src, _ in part], [tgt for _, tgt in part]).to(batch.src.device)
        for part in (pairs[:middle], pairs[middle:])
    ]


def diagnose(
    folder: Path,
    model: nn.Module,
    batches: Sequence[Batch],
    tokenizers: tuple[Tokenizer, Tokenizer],
    found: dict[str, Any],
    rank: int = 0,
) -> Path:
    """Write what is known of a step that failed: `found`, the size of everything, and the sentences it saw.

    norms.json   what was found, and per parameter the norms of weight and gradient and how many numbers of each are
                 not finite, the worst first
    batch.tsv    source and target of every pair of the step, as the model saw them (one file per process)
    """
    folder.mkdir(parents=True, exist_ok=True)
    parameters = sorted(_sizes(model), key=lambda size: -size["not_finite"]["gradient"])
    if not rank:
        content = json.dumps(found | {"parameters": parameters}, ensure_ascii=False, indent=2)
        (folder / "norms.json").write_text(content + "\n", encoding="utf-8")
    src, tgt = tokenizers
    lines = [
        f"{src.decode(x)}\t{tgt.decode(y)}".replace("\n", " ") + "\n"
        for batch in batches
        for x, y in pairs_of(batch)
    ]
    name = f"batch-{rank}.tsv" if rank else "batch.tsv"
    (folder / name).write_text("".join(lines), encoding="utf-8", errors="replace")
    return folder


def _sizes(model: nn.Module) -> Iterator[dict[str, Any]]:
    for name, parameter in model.named_parameters():
        norms: dict[str, float | str | None] = {}
        broken: dict[str, int] = {}
        for key, tensor in (("weight", parameter.detach()), ("gradient", parameter.grad)):
            if tensor is None:
                norms[key], broken[key] = None, 0
                continue
            norm = float(tensor.float().norm())
            norms[key] = norm if math.isfinite(norm) else str(norm)  # strict JSON has no nan
            broken[key] = int((~tensor.isfinite()).sum())
        yield {"name": name, "norm": norms, "not_finite": broken, "numbers": parameter.numel()}

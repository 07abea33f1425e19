"""Measurement for training.py: measure_training.py SETTINGS

The run is timed inside `fit`, with data loading, Lightning's loop and every callback; one more callback counts target
tokens without padding, and ends the run. SETTINGS (`Settings`) and the last line of stdout, the result, are JSON.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from tables import peak_mb
from torch.utils.benchmark import Timer

from dragoman.commands.cli import command
from dragoman.commands.train import import_lightning
from dragoman.compose import compose
from dragoman.config import Config
from dragoman.data.collate import Batch
from dragoman.explain.cost import count_flops

import_lightning()  # before all that import it, as in train.py
from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402

from dragoman.training import fit  # noqa: E402

NEVER = 10**9  # steps
COMMON = [
    "training.lr=5e-4", "training.warmup_steps=400", "training.weight_decay=0", "training.label_smoothing=0.1",
    "training.beta1=0.9", "training.beta2=0.98", "training.ema=0",
    "model.dropout=0.1", "model.tie=all", "data.max_tokens=4096", "trainer.accelerator=cpu",
    f"trainer.max_steps={NEVER}", f"trainer.validate_every={NEVER}", "trainer.samples=0",
]  # fmt: skip


@dataclass(kw_only=True)
class Settings:
    """The training to measure."""

    size: str = "small"  # a file of configs/model
    precision: str = "auto"  # trainer.precision
    data: str | None = None  # folder with the peers' data; None: the phrasebook
    threads: int = 2
    warm_up: float = 20.0  # seconds after the first step that are not counted
    window: float = 20.0  # seconds of a window
    windows: int = 3  # number of windows
    overrides: list[str] = field(default_factory=list)  # more settings, as for train.py


@command
def main(argv: list[str]) -> None:
    settings = Settings(**json.loads(argv[0]))
    torch.set_num_threads(settings.threads)
    meter = Meter(settings)
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        config = configure(settings, Path(folder))
        fit_with(config, meter)
    print(json.dumps({"precision": fit.resolve(config).trainer.precision} | meter.result()))


def configure(settings: Settings, folder: Path) -> Config:
    """Compose the settings; COMMON holds those that are equal for all programs."""
    overrides = ["recipe=none", f"model={settings.size}", f"trainer.precision={settings.precision}", *COMMON]
    data = settings.data
    if data is not None:
        train = f"{{src_path: {data}/train.en, tgt_path: {data}/train.de}}"
        validation = f"{{src_path: {data}/val.en, tgt_path: {data}/val.de, split: validation}}"
        overrides += [f"data.corpora=[{train}, {validation}]", f"data.tokenizer.models=[{data}/spm.model]"]
        # No cleaning, so that all programs train on the same text and pieces.
        overrides += ["data.src=en", "data.tgt=de", "data.drop_copies=false", "data.max_ratio=0", "data.test_size=0"]
    return compose([*overrides, *settings.overrides, f"data.cache={folder}/cache", f"run_dir={folder}/run"])


def fit_with(config: Config, callback: Callback) -> None:
    """Run `fit` with one more callback, which raises `Enough` to end the run."""
    make_trainer = fit.make_trainer

    def with_callback(config: Config, run_dir: Path, callbacks: list[Callback], step: int) -> Trainer:
        return make_trainer(config, run_dir, [*callbacks, callback], step)

    with mock.patch.object(fit, "make_trainer", with_callback), contextlib.suppress(Enough):
        fit.fit(config)


class Enough(Exception):  # noqa: N818 (not an error)
    """Exception that ends a run when its measurement is complete."""


class Meter(Callback):
    """Measure a training in windows of time after a warm-up; then raise `Enough`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.first_step_s = 0.0  # from the start of the process
        self.start = 0.0  # of the running window
        self.end = 0.0  # of the warm-up, or of the running window
        # Counts of the running window: steps, flops, target tokens, and target positions, padding included.
        self.counts: Counter[str] = Counter()
        self.shapes: list[tuple[int, ...]] = []  # of the batches in the running window
        self.windows: list[tuple[float, Counter[str]]] = []  # seconds and counts of each

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        now = time.perf_counter()
        if not self.first_step_s:
            self.first_step_s = time.time() - float(os.environ.get("BENCH_START", "nan"))
            self.end = now + self.settings.warm_up
        self.shapes.append((len(batch.src), batch.src.size(1), batch.tgt_out.size(1), batch.n_tokens))
        self.counts["steps"] += 1
        self.counts["tokens"] += batch.n_tokens
        self.counts["positions"] += batch.tgt_out.numel()
        if now < self.end:
            return
        # A GPU may still be computing the last steps.
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self.start:
            flops = count_flops(pl_module.model, *np.transpose(self.shapes))  # type: ignore[arg-type]
            self.counts["flops"] = round(sum(map(np.sum, flops.values())))
            self.windows.append((now - self.start, self.counts))
            if len(self.windows) == self.settings.windows:
                raise Enough
        self.start, self.end, self.counts = now, now + self.settings.window, Counter()
        self.shapes = []

    def result(self) -> dict[str, Any]:
        """Return the figures, under the names that the peers' programs use."""
        total = sum((counts for _, counts in self.windows), Counter[str]())
        seconds = sum(seconds for seconds, _ in self.windows)
        return {
            "tgt_tok_s_windows": [round(counts["tokens"] / seconds, 1) for seconds, counts in self.windows],
            "gpu": on_gpu(total["flops"] / seconds) if torch.cuda.max_memory_allocated() else "",
            "first_step_s": self.first_step_s,
            "step_ms": round(1000 * seconds / total["steps"], 1),
            "tgt_cells_per_step": round(total["positions"] / total["steps"]),
            "tgt_fill": round(total["tokens"] / total["positions"], 3),
            "peak_rss_mb": peak_mb(),
        }


def on_gpu(flops: float, size: int = 8192) -> str:
    """MFU of a number of operations a second, peak memory, and the name of the GPU.

    MFU: operations on paper as a share of those of the fastest product of (size, size) matrices in bf16.
    """
    memory = torch.cuda.max_memory_allocated() / 2**20
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    peak = 2 * size**3 / min(Timer("a @ b", globals={"a": a, "b": b}).blocked_autorange().times)
    name = torch.cuda.get_device_name()
    return f"{flops / peak:.1%} of {peak / 1e12:,.0f} TFLOP/s; {memory:,.0f} MB; {name}"


if __name__ == "__main__":
    sys.exit(main())

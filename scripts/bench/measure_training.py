"""One measurement of training.py or gpu.py: measure_training.py SETTINGS, a JSON object (`Settings`)

The time is that of `fit` itself, as train.py calls it: data, Lightning's loop, every callback. One more callback counts
target tokens without padding, and ends the run. With the peers' data (peers_data.py), corpus and vocabulary are
theirs; otherwise it is the phrasebook. The last line of stdout is the result as JSON.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from clock import Clock, peak_mb, read_clock
from lightning.pytorch import Callback, LightningModule, Trainer

from dragoman.commands.cli import command
from dragoman.compose import compose
from dragoman.config import Config, CorpusConfig
from dragoman.data.collate import Batch
from dragoman.data.tokenizer import Tokenizer
from dragoman.explain.cost import Cost, Shape
from dragoman.training import fit

NEVER = 10**9  # steps
COMMON = [
    "training.lr=5e-4", "training.warmup_steps=400", "training.weight_decay=0", "training.label_smoothing=0.1",
    "training.beta1=0.9", "training.beta2=0.98", "training.average_last=0", "training.ema=0",
    "model.dropout=0.1", "model.tie=all",
    f"trainer.max_steps={NEVER}", f"trainer.validate_every={NEVER}", "trainer.samples=0",
]  # fmt: skip


@dataclass(kw_only=True)
class Settings:
    """The training to measure."""

    size: str = "small"  # of configs/model
    precision: str = "auto"  # trainer.precision
    everywhere: bool = False  # dropout inside attention and feed-forward too, as most peers have it
    data: str | None = None  # folder of the peers' data; None: the phrasebook
    max_tokens: int = 4096
    threads: int = 2
    warm_up: float = 20.0  # seconds after the first step that are not counted
    window: float = 20.0  # seconds
    windows: int = 3  # quiet ones
    max_windows: int = 12  # after so many, noisy ones count as well
    noise: float = 0.04  # a window is quiet where others used less than this share of the machine
    accelerator: str = "cpu"
    overrides: list[str] = field(default_factory=list)  # more settings, as for train.py


@command
def main(argv: list[str]) -> None:
    settings = Settings(**json.loads(argv[0]))
    torch.set_num_threads(settings.threads)
    meter = Meter(settings)
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder, vocabulary(settings.data):
        config = configure(settings, Path(folder))
        fit_with(config, meter)
    print(json.dumps({"precision": fit.resolve(config).trainer.precision} | meter.result()))


def configure(settings: Settings, folder: Path) -> Config:
    """The run: a size of configs/, and the settings that are equal for all programs."""
    words = ["recipe=none", f"model={settings.size}", f"trainer.precision={settings.precision}", *COMMON]
    words += [f"trainer.accelerator={settings.accelerator}", f"data.max_tokens={settings.max_tokens}"]
    if settings.everywhere:
        words += ["model.attention_dropout=0.1", "model.activation_dropout=0.1"]
    if settings.data is not None:  # the same text for all, without any cleaning
        words += ["data.src=en", "data.tgt=de", "data.drop_copies=false", "data.max_ratio=0", "data.test_size=0"]
    config = compose([*words, *settings.overrides, f"data.cache={folder}/cache", f"run_dir={folder}/run"])
    if settings.data is None:
        return config
    corpora = [
        CorpusConfig(src_path=f"{settings.data}/{name}.en", tgt_path=f"{settings.data}/{name}.de", split=split)
        for name, split in (("train", "train"), ("val", "validation"))
    ]
    return dataclasses.replace(config, data=dataclasses.replace(config.data, corpora=corpora))


def vocabulary(folder: str | None) -> contextlib.AbstractContextManager[Any]:
    """Use the vocabulary of `folder` where one would be trained, so that tokens can be compared."""

    def copy(sentences: object, config: object, path: Path, *rest: object) -> Tokenizer:
        shutil.copyfile(f"{folder}/spm.model", path)
        return Tokenizer(path)

    return mock.patch.object(Tokenizer, "train", copy) if folder else contextlib.nullcontext()


def fit_with(config: Config, callback: Callback) -> None:
    """Run `fit` with one more callback, which raises `Enough` at the end."""
    make_trainer = fit.make_trainer

    def with_callback(config: Config, run_dir: Path, callbacks: list[Callback], step: int) -> Trainer:
        return make_trainer(config, run_dir, [*callbacks, callback], step)

    with mock.patch.object(fit, "make_trainer", with_callback), contextlib.suppress(Enough):
        fit.fit(config)


class Enough(Exception):  # noqa: N818 (not an error)
    """Ends a run of which enough is known."""


@dataclass
class Window:
    """Part of a run: seconds (its start, while it runs), target tokens, positions with padding, steps, FLOPs."""

    clock: Clock
    tokens: int = 0
    positions: int = 0
    steps: int = 0
    flops: float = 0.0


class Meter(Callback):
    """Cuts training into windows after a warm-up; raises `Enough` when there are enough quiet ones.

    Two threads of one program wait for each other, so a busy neighbour costs far more than the time it takes.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.first_step_s = 0.0  # from the start of the process
        self.running: Window | None = None
        self.end = 0.0  # of the warm-up, or of the running window
        self.windows: list[Window] = []

    @property
    def quiet(self) -> list[Window]:
        """The windows in which other processes left the machine alone."""
        return [window for window in self.windows if window.clock.others < self.settings.noise]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        sizes = {"src_vocab_size": len(data.src_tokenizer), "tgt_vocab_size": len(data.tgt_tokenizer)}
        self.cost = Cost(config=pl_module.model.config, **sizes)  # type: ignore[union-attr, arg-type]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        now, window = time.perf_counter(), self.running
        if not self.first_step_s:
            self.first_step_s = time.time() - float(os.environ.get("BENCH_START", "nan"))
            self.end = now + self.settings.warm_up
        if window is not None:
            shape = Shape(len(batch.src), batch.src.size(1), batch.tgt_out.size(1), batch.n_tokens)
            window.flops += sum(self.cost.flops(shape).values())
            window.tokens += batch.n_tokens
            window.positions += batch.tgt_out.numel()
            window.steps += 1
        if now < self.end:
            return
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize()  # until the device has done all steps
        clock = read_clock()
        if window is not None:
            window.clock = clock.since(window.clock)
            self.windows.append(window)
            if len(self.quiet) >= self.settings.windows or len(self.windows) >= self.settings.max_windows:
                raise Enough
        self.running, self.end = Window(clock), clock.wall + self.settings.window

    def result(self) -> dict[str, Any]:
        """The figures, under the names that the peers give theirs."""
        is_enough = len(self.quiet) >= self.settings.windows
        windows = self.quiet if is_enough else self.windows
        seconds = sum(window.clock.wall for window in windows)
        steps, positions = (sum(getattr(window, name) for window in windows) for name in ("steps", "positions"))
        return {
            "tgt_tok_s_windows": [round(window.tokens / window.clock.wall, 1) for window in windows],
            "flops_s": statistics.median(window.flops / window.clock.wall for window in windows),
            "noisy": not is_enough,
            "first_step_s": self.first_step_s,
            "step_ms": round(1000 * seconds / steps, 1),
            "tgt_cells_per_step": round(positions / steps),
            "tgt_fill": round(sum(window.tokens for window in windows) / positions, 3),
            "peak_rss_mb": peak_mb(),
            "peak_gpu_mb": round(torch.cuda.max_memory_allocated() / 2**20) if torch.cuda.is_available() else 0,
        }


if __name__ == "__main__":
    sys.exit(main())

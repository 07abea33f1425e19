"""One training by Dragoman, measured from within: python scripts/measured_fit.py SETTINGS, a JSON object (`Measured`).

What is timed is `fit` itself, as train.py calls it: its data, its module, Lightning's loop, every callback. A further
callback counts and ends it; nothing else is added. The last line of stdout is the result, as JSON.

Given the peers' data (as plain_text.py writes it), the corpus is theirs and so is the vocabulary: fit would train one
of its own, a little other, and tokens could not be compared. Without such a folder it is the phrasebook.

bench_train.py starts this program once for every measurement, in a process of its own, and knows what the figures
mean beside those of others; same_training.py uses `configure` and `watched`.
"""

import contextlib
import dataclasses
import json
import math
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.autograd.profiler_util import FunctionEventAvg
from torch.profiler import ProfilerActivity, profile

from dragoman import cost
from dragoman.config import Config, check
from dragoman.data.collate import Batch
from dragoman.data.corpus import CorpusConfig
from dragoman.data.prepare import DataConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError, plain_errors
from dragoman.training import fit as room
from dragoman.training.module import TranslationModule

BEFORE, PROFILED = 3, 4  # optimizer steps: first not looked at, then profiled
NEVER = 10**9  # steps
PRODUCT_SECONDS = 0.5  # spent on one shape and precision of the ceilings


@dataclass(kw_only=True)
class Measured:
    """What to train and how to look at it."""

    size: str = "small"  # of configs/model
    precision: str = "auto"  # of trainer.precision
    everywhere: bool = False  # dropout inside attention and feed-forward too, as most peers have it
    data: str | None = None  # folder of the peers' data; None: the phrasebook
    max_tokens: int = 4096
    threads: int = 2
    warm_up: float = 20.0  # seconds after the first step that are not counted
    window: float = 20.0  # seconds
    windows: int = 3  # quiet ones wanted
    max_windows: int = 12  # looked at, before noisy ones are taken as well
    noise: float = 0.04  # a window is quiet if others used less than this share of the machine
    profile: bool = False  # instead of windows: where the time of a few steps goes


def main() -> None:
    asked = Measured(**json.loads(sys.argv[1]))
    print(json.dumps(measure(asked)))


def measure(asked: Measured) -> dict[str, Any]:
    """Train until enough is known; the figures."""
    torch.set_num_threads(asked.threads)
    watch = Profile(asked) if asked.profile else Meter(asked)
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder, vocabulary(asked.data):
        config = configure(asked, Path(folder))
        with watched(watch), contextlib.suppress(Enough):
            room.fit(config)
    resolved = room.resolved(config).trainer
    return {"precision": resolved.precision, "torch": torch.__version__, **watch.result()}


def configure(asked: Measured, folder: Path) -> Config:
    """The run: the size as configs/ has it, and what the peers are told too."""
    words = ["trainer=cpu", f"model={asked.size}", f"trainer.precision={asked.precision}"]
    words += [
        "training.lr=5e-4",
        "training.warmup_steps=400",
        "training.weight_decay=0",
    ]  # without decay it is Adam
    words += ["training.label_smoothing=0.1", "training.beta1=0.9", "training.beta2=0.98"]
    words += ["model.dropout=0.1", "model.tie=all", "training.average_last=0", "training.ema=0"]
    words += [f"trainer.max_steps={NEVER}", f"trainer.validate_every={NEVER}", "trainer.samples=0"]
    words += [f"data.max_tokens={asked.max_tokens}"]
    if asked.everywhere:
        words += ["model.attention_dropout=0.1", "model.activation_dropout=0.1"]
    config = check(words)
    data = dataclasses.replace(config.data, cache=str(folder / "cache"))
    if asked.data is not None:
        data = peers_data(data, Path(asked.data))
    return dataclasses.replace(config, run_dir=str(folder / "run"), data=data)


def peers_data(data: DataConfig, folder: Path) -> DataConfig:
    """The same text, and all of it: nothing that a peer would train on is cleaned away."""
    corpora = [
        CorpusConfig(src_path=str(folder / f"{name}.en"), tgt_path=str(folder / f"{name}.de"), split=split)
        for name, split in (("train", "train"), ("val", "validation"))
    ]
    return dataclasses.replace(
        data, src="en", tgt="de", corpora=corpora, drop_copies=False, max_ratio=0.0, test_size=0
    )


@contextlib.contextmanager
def vocabulary(folder: str | None) -> Iterator[None]:
    """Where fit would train a tokenizer, it is given that of the peers' data."""
    if folder is None:
        yield
        return
    model = Path(folder) / "spm.model"
    if not model.is_file():
        raise UserError(f"there is no {model}: prepare_data.py of the peers' scripts makes it")

    def given(sentences: object, config: object, path: Path, *rest: object) -> Tokenizer:
        shutil.copyfile(model, path)
        return Tokenizer.load(path)

    with mock.patch.object(Tokenizer, "train", given):
        yield


class Enough(Exception):  # noqa: N818 (not an error)
    """All that was to be known is known."""


@contextlib.contextmanager
def watched(watch: Callback) -> Iterator[None]:
    """Runs of fit in here have one callback more, the last."""
    trainer_for = room.trainer_for

    def with_watch(config: Config, run_dir: Path, callbacks: list[Callback], step: int) -> Trainer:
        return trainer_for(config, run_dir, [*callbacks, watch], step)

    with mock.patch.object(room, "trainer_for", with_watch):
        yield


@dataclass(frozen=True)
class Counts:
    """So far. All in seconds but tokens, cells (target positions, padding included) and steps."""

    clock: float
    busy: float  # all processors, whoever used them
    user: float  # of this process
    kernel: float  # of this process
    tokens: int
    cells: int
    steps: int

    def since(self, before: "Counts") -> "Counts":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(before), strict=True)
        return Counts(*(now - then for now, then in pairs))

    @property
    def others(self) -> float:
        """The share of the machine that other processes used; 0 where the system does not tell."""
        own = self.user + self.kernel
        return max(0.0, self.busy - own) / self.clock / (os.cpu_count() or 1)


def busy_seconds() -> float:
    """Seconds that all processors together have worked since the system started; 0 where it does not tell."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _idle, _waiting, *rest = map(int, file.readline().split()[1:9])
    except OSError:
        return 0.0
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def process_age() -> float:
    """Seconds since this process was started, before Python itself was there; nan where the system does not tell."""
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return float(Path("/proc/uptime").read_text().split()[0]) - int(after_name[19]) / os.sysconf(
            "SC_CLK_TCK"
        )
    except OSError:
        return math.nan


class Meter(Callback):
    """Cuts training into windows after a warm-up, and raises `Enough` when there are enough quiet ones.

    Two threads of one program wait for each other, so that a busy neighbour costs far more than the time it takes.
    """

    def __init__(self, asked: Measured) -> None:
        self.asked = asked
        self.tokens = self.cells = self.steps = 0
        self.quiet: list[Counts] = []
        self.noisy: list[Counts] = []
        self.mark: Counts | None = None  # where the running window began
        self.due = 0.0  # when it shall end

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.tokens += batch.n_tokens
        self.cells += batch.tgt_out.numel()
        self.steps += 1
        now = time.perf_counter()
        if self.steps == 1:
            self.due, self.first_step = now + self.asked.warm_up, process_age()
            self.parameters = sum(p.numel() for p in pl_module.parameters())
            self.train_pairs = trainer.datamodule.train_size  # type: ignore[attr-defined]
        if now < self.due:
            return
        use = resource.getrusage(resource.RUSAGE_SELF)
        counts = Counts(now, busy_seconds(), use.ru_utime, use.ru_stime, self.tokens, self.cells, self.steps)
        if self.mark is not None:
            self._window(counts.since(self.mark))
        self.mark, self.due = counts, now + self.asked.window

    def _window(self, window: Counts) -> None:
        is_quiet = window.others < self.asked.noise
        (self.quiet if is_quiet else self.noisy).append(window)
        told = f"{window.tokens / window.clock:,.0f} target tokens/s, others used {window.others:.1%}"
        print(told + ("" if is_quiet else " (noisy)"), file=sys.stderr, flush=True)
        seen = len(self.quiet) + len(self.noisy)
        if len(self.quiet) >= self.asked.windows or seen >= self.asked.max_windows:
            raise Enough

    def result(self) -> dict[str, Any]:
        """As the peers' meter writes it, under the same names."""
        enough = len(self.quiet) >= self.asked.windows
        windows = self.quiet if enough else [*self.quiet, *self.noisy]
        total = Counts(*map(sum, zip(*map(dataclasses.astuple, windows), strict=True)))
        most = [
            resource.getrusage(whose).ru_maxrss for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        return {
            "tgt_tok_s_windows": [round(w.tokens / w.clock, 1) for w in windows],
            "others_windows": [round(w.others, 3) for w in windows],
            "noisy": not enough,
            "sys_share": round(total.kernel / total.clock / self.asked.threads, 3),
            "cpu_share": round((total.user + total.kernel) / total.clock / self.asked.threads, 3),
            "step_ms": round(1000 * total.clock / total.steps, 1),
            "tgt_cells_per_step": round(total.cells / total.steps),
            "tgt_fill": round(total.tokens / total.cells, 3),
            "first_step_s": round(self.first_step, 2),
            "peak_rss_mb": round(sum(most) / (2**20 if sys.platform == "darwin" else 2**10)),
            "params": self.parameters,
            "train_pairs": self.train_pairs,
        }


class Profile(Callback):
    """A few steps under torch's profiler, then `Enough`; what this CPU can do at most is measured before them."""

    def __init__(self, asked: Measured) -> None:
        self.asked = asked
        self.steps, self.tokens, self.flops = 0, 0, 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TranslationModule)
        config, n_words = pl_module.model.config, len(trainer.datamodule.tgt_tokenizer)  # type: ignore[attr-defined]
        self.cost = cost.Cost(config=config, src_vocab_size=n_words, tgt_vocab_size=n_words)
        self.shapes = product_shapes(config.d_model, config.d_ff, n_words, self.asked.max_tokens)
        self.products = {
            name: {" x ".join(map(str, shape)): gflops(shape, dtype) for shape in self.shapes}
            for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))
        }

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.steps += 1
        if self.steps > BEFORE:
            rows, width = batch.src.shape
            shape = cost.Shape(rows, width, batch.tgt_out.size(1), batch.n_tokens)
            self.flops += sum(self.cost.flops(shape, training=True).values())
            self.tokens += batch.n_tokens
        if self.steps == BEFORE:
            self.profiler = profile(activities=[ProfilerActivity.CPU], with_flops=True)
            self.profiler.__enter__()
            self.begin = time.perf_counter()
        elif self.steps == BEFORE + PROFILED:
            self.seconds = time.perf_counter() - self.begin
            self.profiler.__exit__(None, None, None)
            raise Enough

    def result(self) -> dict[str, Any]:
        """Per step; seconds under the profiler, which takes some itself. `gflops`: of padding too, as on paper."""
        operators = sorted(self.profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
        return {
            "products": self.products,
            "step_s": self.seconds / PROFILED,
            "tokens": self.tokens / PROFILED,
            "gflop": self.flops / PROFILED / 1e9,
            "operators": [self._operator(event) for event in operators if event.self_cpu_time_total > 0],
        }

    def _operator(self, event: FunctionEventAvg) -> dict[str, Any]:
        seconds = event.self_cpu_time_total / 1e6
        return {
            "name": event.key,
            "share": seconds / self.seconds,
            "calls": event.count / PROFILED,
            "gflops": event.flops / seconds / 1e9 if event.flops else None,
        }


def product_shapes(d_model: int, d_ff: int, n_words: int, n_tokens: int) -> list[tuple[int, int, int]]:
    """(rows, inner, columns) of the products of a step: projections, feed-forward, and the loss in chunks."""
    return [
        (n_tokens, d_model, d_model), (n_tokens, d_model, 3 * d_model), (n_tokens, d_model, d_ff),
        (n_tokens, d_ff, d_model), (512, d_model, n_words),
    ]  # fmt: skip


def gflops(shape: tuple[int, int, int], dtype: torch.dtype) -> float:
    """How fast one product is here: the median of as many as fit into `PRODUCT_SECONDS`, three at least."""
    rows, inner, columns = shape
    x, y = torch.randn(rows, inner, dtype=dtype), torch.randn(inner, columns, dtype=dtype)
    out = torch.empty(rows, columns, dtype=dtype)
    seconds: list[float] = []
    torch.mm(x, y, out=out)
    while len(seconds) < 3 or sum(seconds) < PRODUCT_SECONDS:
        begin = time.perf_counter()
        torch.mm(x, y, out=out)
        seconds.append(time.perf_counter() - begin)
    return 2 * rows * inner * columns / statistics.median(seconds) / 1e9


if __name__ == "__main__":
    with plain_errors():
        main()

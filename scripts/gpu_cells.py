"""One cell of bench_gpu.py, measured in a process of its own: what it breaks or fills, the next one does not inherit.

A cell is a size, a token budget, how batches are packed, compiled or not. It is trained with the run's own module,
data and Lightning Trainer (training/fit.py), without validation, saving and curves. After the warm-up the clock is
read at the edges of windows only, when the device has done all it was asked for; tokens are target tokens to predict,
<EOS> included, padding not.

The utilisation counts what the model needs for these sentences, each alone (cost.py, forward and backward), against
the fastest of a few products of large square matrices in the same precision, in the same process.

Called by bench_gpu.py: python scripts/gpu_cells.py SPEC.json RESULT.json
"""

import dataclasses
import json
import statistics
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from dragoman import cost
from dragoman.config import Config, check
from dragoman.data.collate import Batch, pack
from dragoman.data.datamodule import TranslationData
from dragoman.errors import UserError
from dragoman.model.transformer import Transformer
from dragoman.training.fit import module_for, prepare, resolved, trainer_for
from dragoman.training.machine import forget_peak_memory, peak_memory
from dragoman.training.module import TranslationModule
from dragoman.training.packing import packing_for
from dragoman.training.run import quiet

WINDOWS = 5
CHECKED_STEPS = 3
# Of the first gradients. 1 - cosine on a CPU: right in fp32 1e-13, right in bf16 3e-5 to 1e-4; every target with
# another's source 7e-3, no masks 1e-2, positions not restarting 1e-1.
COSINE = 0.999
TOLERANCE = 0.02  # of the loss per token: three digits of bf16, and steps that add to the difference

Spec = dict[str, Any]


def config_of(spec: Spec) -> Config:
    """The configuration of a cell, as train.py would compose it."""
    settings = [
        f"model={spec['size']}", f"data.max_tokens={spec['tokens']}", f"data.packing={spec['packing']}",
        f"data.corpora=[{{path: '{spec['corpus']}'}}]", f"data.cache={spec['cache']}",
        f"data.workers={spec['workers']}",
        f"data.max_length={spec['max_length']}", f"data.tokenizer.vocab_size={spec['vocab_size']}",
        f"trainer.accelerator={spec['device']}", f"trainer.precision={spec['precision']}",
        f"trainer.compile={str(spec['compile']).lower()}",
        "trainer.max_steps=1000000", "trainer.validate_every=1000000", *spec["changes"],
    ]  # fmt: skip
    return resolved(check(settings))


def data_of(config: Config, folder: Path) -> TranslationData:
    quiet(folder)
    data = TranslationData(config.data, folder, config.seed)
    prepare(config, data)
    return data


def wait(device: torch.device) -> None:
    """Until the device has done all it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize()


class Stopwatch(Callback):
    """Target tokens per second in each window after the warm-up; then it stops the training."""

    def __init__(self, *, warm_up: int, seconds: float) -> None:
        self.warm_up, self.window = warm_up, seconds / WINDOWS
        self.rates: list[float] = []
        self.steps = self.tokens = 0
        self.warm_seconds = self.padding = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.since = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.steps += 1
        if self.steps == self.warm_up:
            wait(pl_module.device)
            self.warm_seconds, self.since = time.perf_counter() - self.since, time.perf_counter()
        if self.steps <= self.warm_up:
            return
        self.tokens += batch.n_tokens
        self.padding += batch.padding_share
        if time.perf_counter() - self.since < self.window:
            return
        wait(pl_module.device)
        now = time.perf_counter()
        self.rates.append(self.tokens / (now - self.since))
        self.since, self.tokens = now, 0
        trainer.should_stop = len(self.rates) == WINDOWS


def speed(spec: Spec) -> dict[str, Any]:
    """The figures of one cell."""
    config = config_of(spec)
    with tempfile.TemporaryDirectory(prefix="dragoman-gpu-") as name:
        folder = Path(name)
        data = data_of(config, folder)
        forget_peak_memory()
        module = module_for(config, data, {}, new=False)
        watch = Stopwatch(warm_up=spec["warm_up"], seconds=spec["seconds"])
        trainer = trainer_for(config, folder, [watch], 0)
        trainer.fit(module, datamodule=data)
        rate = statistics.median(watch.rates)
        ceiling = matrix_ceiling(module.device, config.trainer.precision, spec["matrix"])
        flops = flops_per_token(config, data)
        measured = module.measured
        return {
            "tokens_per_second": round(rate),
            "slowest": round(min(watch.rates)),
            "fastest": round(max(watch.rates)),
            "steps": watch.steps,
            "tokens_per_step": round(data.batch_shapes[0][3]),
            "warm_up_seconds": round(watch.warm_seconds, 1),
            "mflops_per_token": round(flops / 1e6, 2),
            "ceiling_tflops": round(ceiling / 1e12, 3),
            "utilisation": round(rate * flops / ceiling, 4),
            "peak_gb": round(peak_memory(config.trainer.accelerator) / 1e9, 2),
            "padding": round(watch.padding / max(1, watch.steps - watch.warm_up), 4),
            "packing": config.data.packing,
            "parameters": sum(p.numel() for p in module.model.parameters()),
            "vocabulary": len(data.tgt_tokenizer),
            "loss": round(measured["loss"], 3),
        }


def flops_per_token(config: Config, data: TranslationData) -> float:
    """What the model must compute for a target token of this corpus, forward and backward: every pair alone."""
    sizes = len(data.src_tokenizer), len(data.tgt_tokenizer)
    costs = cost.Cost(config=config.model, src_vocab_size=sizes[0], tgt_vocab_size=sizes[1])
    pairs, counts = np.unique(np.stack(data.lengths), axis=1, return_counts=True)
    total = 0.0
    for src, tgt, n in zip(*pairs.tolist(), counts.tolist(), strict=True):
        total += sum(costs.flops(cost.Shape(n, src, tgt, n * tgt), training=True).values())
    return total / int((pairs[1] * counts).sum())


def matrix_ceiling(device: torch.device, precision: str, size: int) -> float:
    """Operations per second of the fastest of five products of (size, size) matrices."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(6):  # the first one warms up
        wait(device)
        start = time.perf_counter()
        for _ in range(5):
            a @ b
        wait(device)
        best = min(best, (time.perf_counter() - start) / 5)
    return 2 * size**3 / best


def losses(spec: Spec) -> dict[str, Any]:
    """The losses of the first steps of every variant, on the same pairs with the same weights and no dropout.

    What they are held against: padded, not compiled, in fp32. The loss alone would prove little: a model that has
    learnt nothing hardly uses what it sees, and without any masks its loss is 0.3 % off. So the first gradient, too,
    must point where that of the plain way does.
    """
    changes = [*spec["changes"], "model.dropout=0.0", "training.warmup_steps=1"]
    plain = {**spec, "changes": changes, "packing": "off", "compile": False, "precision": "32"}
    found: dict[str, Any]
    with tempfile.TemporaryDirectory(prefix="dragoman-gpu-") as name:
        config = config_of(plain)
        data = data_of(config, Path(name))
        batches = list(islice(data.train_dataloader(), CHECKED_STEPS))
        expected, gradient = first_steps(config, data, batches)
        found, cosines = {"padded, 32": expected}, {"padded, 32": 1.0}
        for packing in spec["packings"]:
            for compile in spec["compiles"]:
                variant = {**plain, "packing": packing, "compile": compile, "precision": spec["precision"]}
                title = f"{packing}, {'compiled' if compile else 'eager'}"
                try:
                    found[title], its_gradient = first_steps(config_of(variant), data, batches)
                    cosines[title] = float(torch.cosine_similarity(its_gradient, gradient, dim=0))
                except (RuntimeError, UserError, AssertionError) as error:
                    found[title] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    agree = {
        title: isinstance(those, list)
        and cosines[title] > COSINE
        and all(abs(a - b) <= TOLERANCE * b for a, b in zip(those, expected, strict=True))
        for title, those in found.items()
    }
    return {"losses": found, "cosines": cosines, "agree": agree}


def first_steps(
    config: Config, data: TranslationData, batches: list[Batch]
) -> tuple[list[float], torch.Tensor]:
    """The losses per target token, and the first gradient: the module's own loss, Lightning left out."""
    torch.manual_seed(1)
    torch._dynamo.reset()
    model = Transformer(
        config.model, src_vocab_size=len(data.src_tokenizer), tgt_vocab_size=len(data.tgt_tokenizer)
    )
    device = torch.device("cuda" if config.trainer.accelerator == "gpu" else config.trainer.accelerator)
    module = TranslationModule(model, config.training, max_steps=100, compile=config.trainer.compile).to(
        device
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.trainer.precision)
    found: list[float] = []
    for padded in batches:
        n, rows = len(padded), np.zeros(len(padded), np.int64)
        if config.data.packing == "rows":  # a few pairs a row, whatever they are
            rows = np.arange(n) // 4
        batch = (padded if config.data.packing == "off" else pack(padded, rows)).to(device)
        with torch.autocast(device.type, dtype=half, enabled=half is not None):
            states = module._states(batch)
            loss, _ = module._loss(batch, states, model, config.training.label_smoothing)
        optimizer.zero_grad()
        (loss / batch.n_tokens).backward()
        if not found:
            named = sorted(model.named_parameters())
            gradient = torch.cat([p.grad.flatten().double().cpu() for _, p in named if p.grad is not None])
        optimizer.step()
        found.append(float(loss.detach()) / batch.n_tokens)
    return found, gradient


def packings(spec: Spec) -> dict[str, Any]:
    """Which ways to pack there are here, and the rest of what a table must say of the machine."""
    config = config_of({**spec, "packing": "off", "compile": False})
    flat = dataclasses.replace(config, data=dataclasses.replace(config.data, packing="flat"))
    gpu = config.trainer.accelerator == "gpu"
    found: dict[str, Any] = {"torch": torch.__version__, "device": "CPU", "why_not_flat": None}
    if gpu:
        properties = torch.cuda.get_device_properties(0)
        found["device"] = f"{properties.name}, {properties.total_memory / 1e9:.0f} GB"
    try:
        packing_for(flat, config.trainer.accelerator, config.trainer.precision)
    except UserError as error:
        found["why_not_flat"] = str(error)
    with tempfile.TemporaryDirectory(prefix="dragoman-gpu-") as name:  # prepared here, outside any time limit
        data = data_of(config, Path(name))
        found["vocabulary"], found["pairs"] = len(data.tgt_tokenizer), data.train_size
    return found


KINDS = {"speed": speed, "losses": losses, "packings": packings}


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        result = KINDS[spec["kind"]](spec)
    except torch.OutOfMemoryError as error:
        result = {"failed": f"out of memory: {str(error).splitlines()[0]}"}
    except (RuntimeError, UserError, AssertionError) as error:
        result = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()

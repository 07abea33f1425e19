"""Speed on a GPU: python scripts/bench/gpu.py; gpu.sh runs the GPU tests first.

Training: target tokens/s, and MFU, the operations on paper (explain/cost.py, padding included) as a share of the
fastest product of large square matrices in bf16. Decoding: sentences/s of the included Chinese-English model, of the
phrasebook. Each measurement is a process of its own; the tables go to runs/bench/gpu.md.
"""

import itertools
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from programs import THIS, Program, compare
from tables import Record, markdown, phrasebook, spread
from torch.utils.benchmark import Timer

from dragoman.commands.cli import Parser, command
from dragoman.files import included

TRAININGS = (("small", 16384), ("base", 16384), ("big", 16384), ("base", 65536))  # size, tokens of a batch
PATIENCE = 300  # seconds of one measurement
SENTENCES = 2000


@command
def main(argv: list[str]) -> None:
    Parser(__doc__).parse(argv)
    if not torch.cuda.is_available():
        print("no CUDA device: nothing is measured")
        return
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        compare("gpu", list(programs(Path(folder))), 1, PATIENCE, partial(page, peak_flops()))


def page(peak: float, runs: list[Record]) -> str:
    """The GPU, and a table for each case."""
    training = [
        [run["program"], spread(run["tgt_tok_s_windows"]), f"{run['flops_s'] / peak:.1%}", f"{run['peak_gpu_mb']:,}"]
        for run in runs
        if "flops_s" in run
    ]
    decoding = [[run["program"], f"{run['sent_s']:,.0f}", f"{run['load_s']:.1f}"] for run in runs if "sent_s" in run]
    return (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {peak / 1e12:,.0f} TFLOP/s in bf16\n\n"
        + markdown(["training, bf16", "target tokens/s", "MFU", "peak MB of the GPU"], training)
        + "\n"
        + markdown(["decoding", "sentences/s", "load s"], decoding)
    )


def peak_flops(size: int = 8192) -> float:
    """Operations a second of the fastest product of (size, size) matrices in bf16."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / min(Timer("a @ b", globals={"a": a, "b": b}).blocked_autorange().times)


def programs(folder: Path) -> Iterator[Program]:
    """The measurements, the most important first."""
    shared: Record = {"precision": "bf16", "warm_up": 10, "window": 5}
    for (size, tokens), compiled in itertools.product(TRAININGS, (False, True)):
        overrides = ["trainer.accelerator=gpu", f"trainer.compile={str(compiled).lower()}"]
        overrides += [f"data.max_tokens={tokens}", "data.workers=2"]
        name = f"training {size}, {tokens:,} tokens" + ", compiled" * compiled
        yield THIS.program("measure_training.py", name, shared | {"size": size, "overrides": overrides})
    texts = [pair["zh"] for pair in phrasebook("train")[:SENTENCES]]
    (folder / "source").write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    shared = {"bundle": str(included("data/pretrained/zh_en")), "source": str(folder / "source")}
    shared |= {"device": "cuda", "sentences": SENTENCES, "seconds": 20}
    for precision, batch, beam in itertools.product(("32", "bf16"), (64, 512), (1, 4)):
        settings = shared | {"precision": precision, "batch": batch, "beam": beam}
        name = f"decoding in {precision}, beam of {beam}, {batch} at once"
        yield THIS.program("measure_decoding.py", name, settings)


if __name__ == "__main__":
    sys.exit(main())

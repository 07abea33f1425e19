"""Speed on a GPU: python scripts/bench/gpu.py [--minutes 20]; gpu.sh runs the GPU tests first.

Training: target tokens/s, and MFU, the operations on paper (explain/cost.py, padding included) as a share of the
fastest product of large square matrices in bf16. Decoding: sentences/s of a model with random weights, whose
translations all have 100 pieces. Each measurement is a process of its own; results go to runs/bench/gpu.{json,md}.
"""

import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from programs import Program, checkouts, run
from tables import Record, markdown, save, spread

from dragoman.bundle import Bundle
from dragoman.bundle import save as save_bundle
from dragoman.commands.cli import Parser, command
from dragoman.compose import compose
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.model.transformer import Transformer
from dragoman.special import EOS

TRAININGS = (("small", 16384), ("base", 16384), ("big", 16384), ("base", 65536))  # size, tokens of a batch
MINUTES = 5  # of one measurement
LINES = [f"sentence {n} of {n % 7} words and {n * n} more words" for n in range(2000)]


@command
def main(argv: list[str]) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--minutes", type=float, default=20, metavar="N", help="begin nothing after N (20)")
    parser.add_argument("--results", type=Path, default=Path("runs/bench"), metavar="FOLDER", help="runs/bench")
    args = parser.parse(argv)
    if not torch.cuda.is_available():
        print("no CUDA device: nothing is measured")
        return
    peak, start = peak_flops(), time.monotonic()
    about = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {peak / 1e12:,.0f} TFLOP/s in bf16"
    report: Record = {"machine": about, "peak": peak, "runs": []}
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        for program in programs(Path(folder)):
            if time.monotonic() - start > 60 * args.minutes:
                print(f"stopped after {args.minutes:g} minutes")
                break
            print(program.name, file=sys.stderr, flush=True)
            try:
                record = run(program, {}, 60 * MINUTES)
            except UserError as error:  # lack of memory, for example
                print(error)
                continue
            record.pop("texts", None)
            report["runs"].append({"program": program.name, **record})
            save(report, page, args.results, "gpu")
    print(page(report), end="")


def peak_flops(size: int = 8192) -> float:
    """Operations a second of the fastest of a few products of (size, size) matrices in bf16."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for _ in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            a @ b
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start) / 5)
    return 2 * size**3 / min(seconds)


def programs(folder: Path) -> Iterator[Program]:
    """The measurements, the most telling first."""
    (checkout,) = checkouts([])
    shared: Record = {"accelerator": "gpu", "precision": "bf16", "warm_up": 10, "window": 5, "noise": 2}
    for (size, tokens), compiled in itertools.product(TRAININGS, (False, True)):
        overrides = [f"trainer.compile={str(compiled).lower()}", "data.workers=2"]
        name = f"training {size}, {tokens:,} tokens" + ", compiled" * compiled
        settings = shared | {"size": size, "max_tokens": tokens, "overrides": overrides}
        yield checkout.program("measure_training.py", name, settings)
    shared = write_bundle(folder) | {"device": "cuda", "sentences": len(LINES), "seconds": 20, "noise": 2}
    for precision, batch, beam in itertools.product(("32", "bf16"), (64, 512), (1, 4)):
        settings = shared | {"precision": precision, "batch": batch, "beam": beam}
        name = f"decoding in {precision}, beam of {beam}, {batch} at once"
        yield checkout.program("measure_decoding.py", name, settings)


def write_bundle(folder: Path) -> Record:
    """Write a bundle of random weights and a text; their paths."""
    config = compose(["model=base", "recipe=none"])
    tokenizer = Tokenizer.train(LINES, config.data.tokenizer, folder / "joint.model", ["de", "en"])
    model = Transformer(config.model, src_vocab_size=len(tokenizer), tgt_vocab_size=len(tokenizer))
    with torch.no_grad():
        model.projection.weight[EOS] = 0  # translations end at their maximum length
    both: Record = {"src_tokenizer": tokenizer, "tgt_tokenizer": tokenizer, "src": "de", "tgt": "en"}
    save_bundle(Bundle(model=model, model_config=config.model, **both), folder / "bundle")
    (folder / "source.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return {"bundle": str(folder / "bundle"), "source": str(folder / "source.txt")}


def page(report: Record) -> str:
    """A table of training and one of decoding."""
    training, decoding = [], []
    for record in report["runs"]:
        name = record["program"].removeprefix("Dragoman ")
        if "sent_s" in record:
            decoding.append([name, f"{record['sent_s']:,.0f}", f"{record['load_s']:.1f}"])
        else:
            speed, mfu = spread(record["tgt_tok_s_windows"]), record["flops_s"] / report["peak"]
            training.append([name, speed, f"{mfu:.1%}", f"{record['peak_gpu_mb']:,}"])
    header = ["training, bf16", "target tokens/s", "MFU", "peak MB of the GPU"]
    tables = markdown(header, training), markdown(["decoding", "sentences/s", "load s"], decoding)
    return "\n".join([report["machine"] + "\n", *tables])


if __name__ == "__main__":
    sys.exit(main())

"""Growth of cost: python scripts/bench/scale.py [--only length size batch corpus]

One thing grows at a time: the length of sentences, the size of the model, the tokens of a batch, or the pairs of a
corpus, prepared without a cache. Each measurement runs in a new process, on the CPU in fp32. Compare the time of a
training step with the operations that explain/cost.py counts.
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import torch
from pyarrow.parquet import ParquetWriter
from tables import Record, machine, markdown, peak_mb
from torch.utils.benchmark import Timer

from dragoman.commands.cli import Parser, command
from dragoman.compose import compose
from dragoman.config import CorpusConfig
from dragoman.data.collate import collate
from dragoman.data.datamodule import TranslationData
from dragoman.data.readers import find
from dragoman.explain.cost import count_flops
from dragoman.model.transformer import Transformer
from dragoman.training.module import projected_loss
from dragoman.training.run import configure_memory

VOCABULARY = 8_000
SECONDS = 3.0  # minimum time of a measurement
SWEEPS: dict[str, list[Record]] = {
    "length": [{"size": "small", "length": n, "tokens": 4096} for n in (16, 32, 64, 128, 256, 512)],
    "size": [{"size": size, "length": 32, "tokens": 1024} for size in ("tiny", "small", "base", "big")],
    "batch": [{"size": "small", "length": 32, "tokens": n} for n in (256, 512, 1024, 2048, 4096, 8192)],
    "corpus": [{"chunks": n} for n in (1, 10, None)],  # of 10,000 pairs; None: all
}


@command
def main(argv: list[str]) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--only", nargs="+", default=list(SWEEPS), choices=SWEEPS, help="(all)")
    parser.add_argument("--corpus", default="data/phrasebook/composed", help="a corpus to prepare (%(default)s)")
    args = parser.parse_args(argv)
    print(f"{machine()}, fp32")
    for name in args.only:
        measure: Callable[..., Record] = partial(prepare, args.corpus) if name == "corpus" else train
        rows = []
        for settings in SWEEPS[name]:
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                rows.append(process.submit(measure, **settings).result())
        print("\n" + markdown(list(rows[0]), [list(map(text, row.values())) for row in rows]), flush=True)


def text(value: float | str) -> str:
    """A word, or a number with at least three digits."""
    return value if isinstance(value, str) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def prepare(corpus: str, chunks: int | None) -> Record:
    """Prepare the first chunks of a corpus in a temporary folder, and read batches."""
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        path = Path(folder) / "train.parquet"
        with ParquetWriter(path, pa.schema({"zh": pa.string(), "en": pa.string()})) as writer:
            for rows in islice(find(CorpusConfig(path=corpus), "zh", "en").open()["train"], chunks):
                writer.write_table(pa.table({"zh": rows.src, "en": rows.tgt}))
        config = compose(["recipe=none", f"data.corpora=[{{path: {path}}}]", f"data.cache={folder}/cache"]).data
        before, start = peak_mb(), time.perf_counter()
        data = TranslationData(config, Path(folder), seed=1)
        seconds, memory = time.perf_counter() - start, peak_mb() - before
        sizes = [path.stat().st_size for path in Path(config.cache).rglob("*") if path.is_file()]
        stream = iter(data.train_dataloader())
        next(stream)
        n_tokens, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < SECONDS or not n_tokens:
            batch = next(stream)
            n_tokens += int(batch.src_key_padding_mask.logical_not().sum()) + batch.n_tokens
    return {
        "pairs": data.train_size,
        "preparing, s": seconds,
        "memory for preparing, MB": memory,
        "cache, MB": sum(sizes) / 1e6,
        "loading, µs a token of both sides": 1e6 * spent / n_tokens,
    }


def train(size: str, length: int, tokens: int) -> Record:
    """Time a training step, for sentences of one length."""
    configure_memory()
    sizes = {"src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY}
    rows, config = tokens // length, compose([f"model={size}", "recipe=none"]).model
    batch = collate(sentences(rows, length - 1), sentences(rows, length - 1))
    before, model = peak_mb(), Transformer(config, **sizes).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()  # before the forward pass, as in training/module.py
        memory = model.encode(batch.src, batch.src_key_padding_mask)
        states = model.decode(batch.tgt_in, memory, batch.src_key_padding_mask).flatten(0, 1)  # (tokens, D)
        loss, _ = projected_loss(states, model.projection.weight, batch.tgt_out.flatten(), label_smoothing=0.0)
        (loss / batch.n_tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    seconds = timer.blocked_autorange(min_run_time=SECONDS).median
    flops = sum(count_flops(model, rows, length, length, rows * length).values())
    return {
        "model": size,
        "tokens in a sentence": length,
        "tokens in a batch": tokens,
        "MFLOPs a target token": flops / batch.n_tokens / 1e6,
        "training, ms a target token": 1000 * seconds / batch.n_tokens,
        "memory, MB": peak_mb() - before,
    }


def sentences(n: int, length: int) -> list[list[int]]:
    """n rows of random ids."""
    generator = random.Random(1)
    return [generator.choices(range(4, VOCABULARY), k=length) for _ in range(n)]


if __name__ == "__main__":
    sys.exit(main())

"""One measurement of bench_scale.py, in this process and nothing else in it: memory and imports are its own.

python scripts/measured_cell.py NAME '{"option": value, ...}' prints a JSON object as its last line. What is measured
is the program's own: `prepare`, the planner, the stream of batches, the model, its loss, its search. On the CPU and in
fp32, so that a cost can be set beside the operations and bytes that cost.py counts.
"""

import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from bench_data import loading
from dragoman.data.collate import Batch, collate
from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import DataConfig, TranslationData
from dragoman.data.sources import find
from dragoman.experiments import CONFIGS
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.search.search import SearchConfig
from dragoman.special import EOS
from dragoman.torch_engine import translate_ids
from dragoman.training.loss import projected_loss
from dragoman.training.machine import forget_peak_memory, keep_freed_memory, peak_memory

SRC, TGT = "zh", "en"
VOCABULARY = 8_000
DECODED_ROWS = 16
WARM_UP, STEPS, SECONDS = 2, 5, 3.0  # steps not timed; timed at least, for at least so long

Found = dict[str, float]


def take(corpus: str, pairs: int, folder: str) -> Found:
    """Write the first training pairs of a corpus as a corpus of its own, laid out like a hub dataset."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(SRC, pa.string()), (TGT, pa.string())])
    Path(folder).mkdir(parents=True)
    n_left = pairs
    with pq.ParquetWriter(Path(folder) / "train.parquet", schema) as file:
        for rows in find(CorpusConfig(path=corpus), SRC, TGT, root=None).open()["train"].chunks:
            columns = {SRC: rows.src[:n_left], TGT: rows.tgt[:n_left]}
            file.write_table(pa.table(columns, schema))
            n_left -= len(columns[SRC])
            if not n_left:
                break
    return {"pairs": pairs - n_left}


def prepare(corpus: str, cache: str, run: str) -> Found:
    """Prepare a corpus from nothing; then plan an epoch, and read batches for a while."""
    config = DataConfig(src=SRC, tgt=TGT, corpora=[CorpusConfig(path=corpus)], cache=cache)
    data = TranslationData(config, Path(run), seed=1)
    forget_peak_memory()
    before, start = peak_memory("cpu"), time.perf_counter()
    data.prepare()
    seconds, memory = time.perf_counter() - start, peak_memory("cpu") - before
    planner = data.train_dataloader().planner
    start = time.perf_counter()
    planner.epoch(1)
    planned = time.perf_counter() - start
    _, rate, _ = loading(data, seconds=2.0)
    size = sum(file.stat().st_size for file in Path(cache).rglob("*") if file.is_file())
    return {
        "prepare_s": seconds,
        "prepare_mb": memory / 1e6,
        "cache_mb": size / 1e6,
        "plan_s": planned,
        "load_us": 1e6 / rate,
    }


def train(size: str, length: int, tokens: int) -> Found:
    """Milliseconds of training for a target token, and megabytes: sentences of one length, nothing padded."""
    keep_freed_memory()
    torch.manual_seed(1)
    batch = collate(sentences(tokens // length, length - 1, 1), sentences(tokens // length, length - 1, 2))
    forget_peak_memory()
    before = peak_memory("cpu")
    model = model_of(size).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    seconds: list[float] = []
    while len(seconds) < WARM_UP + STEPS or sum(seconds[WARM_UP:]) < SECONDS:
        start = time.perf_counter()
        _step(model, optimizer, batch)
        seconds.append(time.perf_counter() - start)
    return {
        "train_ms": 1000 * statistics.median(seconds[WARM_UP:]) / batch.n_tokens,
        "train_mb": (peak_memory("cpu") - before) / 1e6,
    }


def _step(model: Transformer, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    optimizer.zero_grad()  # before all else, as module.py does
    memory = model.encode(batch.src, batch.src_key_padding_mask)
    states = model.states(batch.tgt_in, memory, batch.src_key_padding_mask).flatten(0, 1)  # (tokens, D)
    loss, _ = projected_loss(states, model.projection.weight, batch.tgt_out.flatten())
    (loss / batch.n_tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def decode(size: str, length: int) -> Found:
    """Seconds to translate a few sentences greedily into sentences of the same length."""
    torch.manual_seed(1)
    model = model_of(size).eval()
    with torch.no_grad():  # <EOS> is never the likeliest: translations end where they must
        model.projection.weight[EOS] = 0
    search = SearchConfig(kind="greedy", max_length_a=1.0, max_length_b=1)
    sources = sentences(DECODED_ROWS, length - 1, 1)
    for _ in range(2):  # the first time much is loaded
        start = time.perf_counter()
        found = translate_ids(model, sources, search, batch_tokens=DECODED_ROWS * length)
        seconds = time.perf_counter() - start
    assert all(len(hypotheses[0].ids) >= length - 1 for hypotheses in found)
    return {"decode_s": seconds}


def config_of(size: str) -> ModelConfig:
    """A size by its name in configs/model."""
    return ModelConfig(**yaml.safe_load((CONFIGS / "model" / f"{size}.yaml").read_text()))


def model_of(size: str) -> Transformer:
    """With weights that know nothing: they cost what others cost."""
    return Transformer(config_of(size), src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY)


def sentences(n: int, length: int, seed: int) -> list[list[int]]:
    """n rows of random ids."""
    chance = random.Random(seed)
    return [chance.choices(range(EOS + 1, VOCABULARY), k=length) for _ in range(n)]


CELLS: dict[str, Any] = {"take": take, "prepare": prepare, "train": train, "decode": decode}


if __name__ == "__main__":
    print(json.dumps(CELLS[sys.argv[1]](**json.loads(sys.argv[2]))))

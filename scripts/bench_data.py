"""How fast a corpus becomes batches: prepare it (or find it prepared), then time the stream in this process.

python scripts/bench_data.py tatoeba                        # a folder under DRAGOMAN_DATA
python scripts/bench_data.py data/phrasebook --sampling 0.1 --workers 2
"""

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path

from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import DataConfig, TranslationData
from dragoman.data.tokenizer import KINDS, TokenizerConfig
from dragoman.errors import plain_errors


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time how fast a corpus becomes batches.")
    parser.add_argument("corpus", nargs="*", default=["data/phrasebook"], help="paths, as in data.corpora")
    parser.add_argument("--src", default="zh", help="language of the source (default: zh)")
    parser.add_argument("--tgt", default="en", help="language of the target (default: en)")
    parser.add_argument("--both", action="store_true", help="batches for a model of both directions")
    parser.add_argument("--root", help="folder of local corpora (default: the variable DRAGOMAN_DATA)")
    parser.add_argument("--cache", default="data/cache", help="where prepared corpora are kept")
    parser.add_argument(
        "--max-tokens", type=int, default=4096, help="token budget of a batch (default: 4096)"
    )
    parser.add_argument("--kind", default="bpe", choices=KINDS, help="kind of tokenizer (default: bpe)")
    parser.add_argument("--vocab-size", type=int, default=8000, help="size of the vocabulary (default: 8000)")
    parser.add_argument("--sampling", type=float, default=0.0, help="subword regularisation (default: off)")
    parser.add_argument("--workers", type=int, default=0, help="processes that collate (default: none)")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to read batches (default: 5)")
    return parser.parse_args()


def loading(data: TranslationData, seconds: float) -> tuple[float, float, float]:
    """Read batches for so long: seconds until the first, then tokens per second, and the share of padding."""
    start = time.perf_counter()
    stream = iter(data.train_dataloader())
    next(stream)
    first, n_tokens, n_positions = time.perf_counter() - start, 0, 0
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds or not n_tokens:
        batch = next(stream)
        positions = batch.src.numel() + batch.tgt_out.numel()
        n_positions += positions
        n_tokens += round(positions * (1 - batch.padding_share))
    return first, n_tokens / spent, 1 - n_tokens / n_positions


def main() -> None:
    args = arguments()
    tokenizer = TokenizerConfig(kind=args.kind, vocab_size=args.vocab_size, sampling=args.sampling)
    config = DataConfig(
        src=args.src,
        tgt=args.tgt,
        directions=[f"{args.src}_{args.tgt}", f"{args.tgt}_{args.src}"] if args.both else [],
        corpora=[CorpusConfig(path=path) for path in args.corpus],
        root=args.root,
        tokenizer=tokenizer,
        max_tokens=args.max_tokens,
        workers=args.workers,
        cache=args.cache,
    )
    with tempfile.TemporaryDirectory() as run_dir:
        data = TranslationData(config, Path(run_dir), seed=1)
        start = time.perf_counter()
        data.prepare()
        print(f"prepared in       {time.perf_counter() - start:10.1f} s")
        first, rate, padding = loading(data, args.seconds)
        print(f"first batch after {first:10.2f} s")
        print(f"training pairs    {data.train_size:10,} per epoch, in {data.batches_per_epoch:,} batches")
        print(f"padding           {padding:10.1%} of both sides, at {args.max_tokens:,} tokens")
        print(f"loading           {rate / 1e6:10.2f} million tokens/s")
        print(f"on                {platform.processor() or platform.machine()}, {os.cpu_count()} cores")


if __name__ == "__main__":
    with plain_errors():
        main()

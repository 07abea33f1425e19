"""Speed of the data: python scripts/bench/data.py [CORPUS ...] prepares a corpus, then reads batches for a while.

python scripts/bench/data.py tatoeba                        # a folder under DRAGOMAN_DATA
python scripts/bench/data.py data/phrasebook/composed --set data.tokenizer.sampling=0.1 data.workers=2
"""

import sys
import tempfile
import time
from pathlib import Path

from clock import peak_mb
from tables import Record, machine, markdown

from dragoman.commands.cli import Parser, command
from dragoman.compose import compose
from dragoman.data.datamodule import TranslationData

PHRASEBOOK = ["data/phrasebook/written", "data/phrasebook/composed"]


@command
def main(argv: list[str]) -> None:
    parser = Parser(__doc__)
    parser.add_argument("corpus", nargs="*", default=PHRASEBOOK, help="paths, as in data.corpora (the phrasebook)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of data")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="how long to read batches (5)")
    args = parser.parse(argv)
    record = measure(args.corpus, args.set, args.seconds)
    print(f"{machine()}\n\n" + markdown(list(record), [[f"{value:,.3g}" for value in record.values()]]), end="")


def measure(corpora: list[str], settings: list[str], seconds: float) -> Record:
    """Prepare in a temporary folder, then read batches for so many seconds."""
    listed = ", ".join(f"{{path: {path}}}" for path in corpora)
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        config = compose(["recipe=none", f"data.corpora=[{listed}]", f"data.cache={folder}/cache", *settings]).data
        before, start = peak_mb(), time.perf_counter()
        data = TranslationData(config, Path(folder), seed=1)
        record: Record = {"pairs": data.train_size, "preparing, s": time.perf_counter() - start}
        sizes = [path.stat().st_size for path in Path(config.cache).rglob("*") if path.is_file()]
        record |= {"memory for it, MB": peak_mb() - before, "cache, MB": sum(sizes) / 1e6}
        start = time.perf_counter()
        stream = iter(data.train_dataloader())
        next(stream)
        record["first batch, s"], n_tokens, n_positions = time.perf_counter() - start, 0, 0
        start = time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds or not n_tokens:
            batch = next(stream)
            n_tokens += int(batch.src_key_padding_mask.logical_not().sum()) + batch.n_tokens
            n_positions += batch.src.numel() + batch.tgt_out.numel()
    return record | {"loading, µs a token": 1e6 * spent / n_tokens, "padding, %": 100 - 100 * n_tokens / n_positions}


if __name__ == "__main__":
    sys.exit(main())

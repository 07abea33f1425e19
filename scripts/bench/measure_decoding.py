"""One measurement of decoding.py: python scripts/bench/measure_decoding.py SETTINGS, a JSON object (`Settings`)

Sentences are tokenised, searched and detokenised by one engine, without the splitting into sentences of translate.py,
as in the peers' programs. Loading is timed apart. A case that would take too long is cut to its first sentences, and
a run in which other processes used too much of the machine is repeated. The last line of stdout is the result as JSON.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clock import peak_mb, read_clock

from dragoman import bundle as bundles
from dragoman.bundle import BundleInfo
from dragoman.commands.cli import command
from dragoman.config import SearchConfig

LONGEST = 100  # pieces of a translation; no source has more


@dataclass(kw_only=True)
class Settings:
    """The translation to measure."""

    bundle: str
    source: str  # a file with a sentence in each line
    reference: str | None = None  # another one, for the score
    engine: str = "torch"
    device: str = "cpu"
    precision: str = "32"  # of torch: 32 or bf16
    beam: int = 1
    batch: int = 64  # sentences at once, on average
    sentences: int = 1000
    seconds: float = 10.0  # of one run
    tries: int = 3  # until other processes are quiet
    noise: float = 0.04
    threads: int = 2


# (sources, search, batch_tokens) -> the ids of the best translation of each
Engine = Callable[[Sequence[Sequence[int]], SearchConfig, int], list[list[int]]]


@command
def main(argv: list[str]) -> None:
    print(json.dumps(measure(Settings(**json.loads(argv[0])))))


def measure(settings: Settings) -> dict[str, Any]:
    """Load, warm up and time; the figures have the names that the peers give theirs."""
    lines = Path(settings.source).read_text(encoding="utf-8").splitlines()[: settings.sentences]
    start = read_clock()
    engine, info = load(settings), bundles.load_info(settings.bundle)
    load_s = read_clock().since(start).wall
    probe = lines[:64] if settings.batch > 1 else lines[:8]
    for _ in range(2):  # the first time warms up
        start = read_clock()
        translate(engine, info, probe, settings)
        n_fitting = int(settings.seconds * len(probe) / read_clock().since(start).wall)
    if n_fitting < len(lines):
        lines = lines[: max(len(probe), n_fitting // settings.batch * settings.batch)]
    for _ in range(settings.tries):
        start = read_clock()
        texts = translate(engine, info, lines, settings)
        spent = read_clock().since(start)
        if spent.others < settings.noise:
            break
    record = {
        "sent_s": len(lines) / spent.wall, "sentences": len(lines), "load_s": load_s, "noise": spent.others,
        "texts": texts, "peak_rss_mb": peak_mb(),
    }  # fmt: skip
    if settings.reference:
        from sacrebleu import corpus_bleu

        references = Path(settings.reference).read_text(encoding="utf-8").splitlines()[: len(lines)]
        record["bleu"] = corpus_bleu(texts, [references]).score
    return record


def translate(engine: Engine, info: BundleInfo, lines: list[str], settings: Settings) -> list[str]:
    """Translate lines to text, in batches of `settings.batch` sentences on average."""
    kind = "beam" if settings.beam > 1 else "greedy"
    search = SearchConfig(kind=kind, beam_size=settings.beam, max_length_a=0.0, max_length_b=LONGEST)
    sources = info.src_tokenizer.encode_batch(lines)
    if settings.batch == 1:
        best = [engine([source], search, 10**6)[0] for source in sources]
    else:
        n_tokens = sum(len(source) + 1 for source in sources)
        best = engine(sources, search, -(-settings.batch * settings.beam * n_tokens // len(sources)))
    return [info.tgt_tokenizer.decode(ids) for ids in best]


def load(settings: Settings) -> Engine:
    """Load a bundle for the engine of `settings`."""
    if settings.engine == "ctranslate2":
        from dragoman.translation.ctranslate2 import CTranslate2Engine

        folder = Path(settings.bundle)
        export = CTranslate2Engine.load(folder, bundles.load_info(folder))
        return lambda sources, search, batch_tokens: [
            hypotheses[0].ids
            for hypotheses in export.translate(sources, search, batch_tokens=batch_tokens, scored=False)
        ]
    import torch

    from dragoman.translation.engine import translate_ids

    torch.set_num_threads(settings.threads)
    model = bundles.load(settings.bundle, settings.device).model

    def best(sources: Sequence[Sequence[int]], search: SearchConfig, batch_tokens: int) -> list[list[int]]:
        with torch.autocast(settings.device, torch.bfloat16, enabled=settings.precision == "bf16"):
            results = translate_ids(model, sources, search, batch_tokens=batch_tokens)
        return [hypotheses[0].ids for hypotheses in results]

    return best


if __name__ == "__main__":
    sys.exit(main())

"""Measurement of one engine, started by decoding.py: measure_decoding.py SETTINGS

Sentences are tokenised, searched and detokenised by one engine, without the splitting into sentences of translate.py,
as in the peers' programs. SETTINGS is a JSON object (`Settings`); the last line of stdout is the result as JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tables import peak_mb

from dragoman import bundle as bundles
from dragoman.commands.cli import command
from dragoman.config import SearchConfig
from dragoman.search import Hypothesis

LONGEST = 100  # tokens of a translation; no source has more
# (sources, search, batch_tokens=) -> hypotheses of each
Engine = Callable[..., list[list[Hypothesis]]]


@dataclass(kw_only=True)
class Settings:
    """The translation to measure."""

    bundle: str
    source: str  # a file with a sentence in each line
    reference: str  # another one, for the score
    engine: str = "torch"
    precision: str = "32"  # of torch: 32 or bf16
    beam: int = 1
    batch: int = 64  # sentences at once, on average
    sentences: int = 1000
    seconds: float = 10.0  # of one run
    threads: int = 2


@command
def main(argv: list[str]) -> None:
    print(json.dumps(measure(Settings(**json.loads(argv[0])))))


def measure(settings: Settings) -> dict[str, Any]:
    """Load, warm up and time; the figures have the names that the peers give theirs."""
    lines = Path(settings.source).read_text(encoding="utf-8").splitlines()[: settings.sentences]
    info = bundles.load_info(settings.bundle)
    engine = load(settings, info)
    probe = lines[: 64 * settings.threads] if settings.batch > 1 else lines[:8]
    for _ in range(2):  # the first time warms up
        start = time.perf_counter()
        translate(engine, info, probe, settings)
        n_fitting = int(settings.seconds * len(probe) / (time.perf_counter() - start))
    if n_fitting < len(lines):
        lines = lines[: max(len(probe), n_fitting // settings.batch * settings.batch)]
    start = time.perf_counter()
    texts = translate(engine, info, lines, settings)
    speed = len(lines) / (time.perf_counter() - start)
    record = {"sent_s": speed, "sentences": len(lines), "texts": texts, "peak_rss_mb": peak_mb()}
    from sacrebleu import corpus_bleu  # imported here, so that it does not count in the peak memory

    references = Path(settings.reference).read_text(encoding="utf-8").splitlines()[: len(lines)]
    return record | {"bleu": corpus_bleu(texts, [references]).score}


def translate(engine: Engine, info: bundles.BundleInfo, lines: list[str], settings: Settings) -> list[str]:
    """Translate lines to text, in batches of `settings.batch` sentences on average."""
    kind = "beam" if settings.beam > 1 else "greedy"
    search = SearchConfig(kind=kind, beam_size=settings.beam, max_length_a=0.0, max_length_b=LONGEST)
    sources = info.src_tokenizer.encode_batch(lines)
    n_tokens = sum(len(source) + 1 for source in sources)
    batch_tokens = -(-settings.batch * settings.beam * n_tokens // len(sources))
    groups = [sources] if settings.batch > 1 else [[source] for source in sources]
    results = [hypotheses for group in groups for hypotheses in engine(group, search, batch_tokens=batch_tokens)]
    return [info.tgt_tokenizer.decode(hypotheses[0].ids) for hypotheses in results]


def load(settings: Settings, info: bundles.BundleInfo) -> Engine:
    """Load a bundle for the engine of `settings`."""
    if settings.engine == "ctranslate2":
        from dragoman.translation.ctranslate2 import CTranslate2Engine

        return partial(CTranslate2Engine.load(Path(settings.bundle), info).translate, scored=False)
    import torch

    from dragoman.translation.engine import translate_ids

    torch.set_num_threads(settings.threads)
    model = bundles.load(settings.bundle).model
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=settings.precision == "bf16")
    return autocast(partial(translate_ids, model))


if __name__ == "__main__":
    sys.exit(main())

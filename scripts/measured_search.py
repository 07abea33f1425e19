"""One measurement of bench_decode.py, in a process of its own: python scripts/measured_search.py SETTINGS, as JSON.

Text to text, as the peers are measured (`Asked`): the sentences are cut into pieces, searched, and put together
again, by the engine that translate.py would use; loading is timed apart. Lines are taken whole, as by the peers,
where translate.py would look for several sentences in them. The last line of stdout is the result, as JSON.

A case that would take too long is cut to the first so many sentences, and a run in which other processes took more
than their share of the machine is made again: both as decodelib.py of the peers' programs has it.
"""

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.errors import plain_errors
from dragoman.search.hypothesis import SearchConfig

if TYPE_CHECKING:
    from dragoman.translator import Translator

UNITS_PER_MB = 1024**2 if sys.platform == "darwin" else 1024  # of getrusage
LONGEST = 100  # pieces of an answer; no source has more


@dataclass(kw_only=True)
class Asked:
    """What to translate, how, and how to look at it."""

    bundle: str
    source: str  # a file, a sentence a line
    reference: str | None = None  # another one, to score by
    engine: str = "torch"
    precision: str = "32"  # of torch: 32 or bf16
    beam: int = 1
    batch: int = 64  # sentences at once, on average
    sentences: int = 1000
    seconds: float = 10.0  # that a run may take
    tries: int = 3  # until others are quiet
    noise: float = 0.04
    threads: int = 2


def main() -> None:
    print(json.dumps(measure(Asked(**json.loads(sys.argv[1])))))


def measure(asked: Asked) -> dict[str, Any]:
    """Load, warm up, time: the figures, under the names that the peers give to theirs, and the `texts`."""
    lines = Path(asked.source).read_text(encoding="utf-8").splitlines()[: asked.sentences]
    begin = time.perf_counter()
    translate = loaded(asked)
    load_s = time.perf_counter() - begin
    probe = lines[:64] if asked.batch > 1 else lines[:8]
    translate(probe)
    begin = time.perf_counter()
    translate(probe)
    fitting = int(asked.seconds * len(probe) / (time.perf_counter() - begin))
    if fitting < len(lines):
        lines = lines[: max(len(probe), fitting // asked.batch * asked.batch)]
    for _ in range(asked.tries):
        before, begin = clocks(), time.perf_counter()
        found = translate(lines)
        seconds = time.perf_counter() - begin
        noise = others(before, clocks(), seconds)
        if noise < asked.noise:
            break
    texts, n_tokens = [text for text, _ in found], sum(n for _, n in found)
    result = {
        "sent_s": len(lines) / seconds, "tok_s": n_tokens / seconds, "out_tokens": n_tokens, "sentences": len(lines),
        "seconds": seconds, "load_s": load_s, "noise": noise, "texts": texts,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // UNITS_PER_MB,
    }  # fmt: skip
    if asked.reference:
        from sacrebleu import corpus_bleu

        references = Path(asked.reference).read_text(encoding="utf-8").splitlines()[: len(lines)]
        result["bleu"] = corpus_bleu(texts, [references]).score
    return result


def loaded(asked: Asked) -> Callable[[list[str]], list[tuple[str, int]]]:
    """A function from lines to their translations, each with the number of its pieces, its end mark counted."""
    from dragoman.translator import Translator

    translator = Translator.load(asked.bundle, "cpu", engine=asked.engine)
    precision: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    if asked.engine == "torch":
        import torch

        torch.set_num_threads(asked.threads)
        if asked.precision == "bf16":
            precision = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
    kind = "beam" if asked.beam > 1 else "greedy"
    search = SearchConfig(kind=kind, beam_size=asked.beam, max_length_a=0.0, max_length_b=LONGEST)

    def translate(lines: list[str]) -> list[tuple[str, int]]:
        with precision():
            if asked.batch > 1:
                return searched(translator, lines, search, asked.batch)
            return [found for line in lines for found in searched(translator, [line], search, 1)]

    return translate


def searched(
    translator: "Translator", lines: list[str], search: SearchConfig, batch: int
) -> list[tuple[str, int]]:
    sources = translator.bundle.src_tokenizer.encode_batch(lines)
    n_pieces = sum(len(source) + 1 for source in sources)
    # Batches are cut by pieces, beams counted: so many that they hold `batch` sentences on average.
    budget = -(-batch * search.beam_size * n_pieces // len(sources)) if batch > 1 else 10**6
    found = translator.engine.translate(sources, search, longest=LONGEST, batch_tokens=budget, scored=False)
    decode = translator.bundle.tgt_tokenizer.decode
    return [(decode(best.ids), len(best.ids) + 1) for best, *_ in found]


def clocks() -> tuple[float, float]:
    """Seconds that all processors were busy, and that this process was; zeros where the system does not tell."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0.0, 0.0
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK"), used.ru_utime + used.ru_stime


def others(before: tuple[float, float], after: tuple[float, float], seconds: float) -> float:
    """The share of the machine that other processes used between two `clocks`."""
    busy, own = (b - a for a, b in zip(before, after, strict=True))
    return max(0.0, (busy - own) / seconds / (os.cpu_count() or 1))


if __name__ == "__main__":
    with plain_errors():
        main()

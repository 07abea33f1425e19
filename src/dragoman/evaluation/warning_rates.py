"""How often the warnings apply, on good input and on damaged input.

Most warnings on good input are false alarms; the others mark bad translations. Warnings on damaged input are hits.
"""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

from dragoman.config import SearchConfig
from dragoman.data.text import Pair
from dragoman.languages import Direction
from dragoman.translation.translator import Translator
from dragoman.translation.warning import KINDS, kind_of

# Characters of CJK Extension A, which hardly any corpus has.
_UNSEEN = "".join(map(chr, range(0x3400, 0x4DC0)))
N_INPUTS = 5  # good sources, and sources damaged in four ways


def inputs(pairs: Sequence[Pair]) -> dict[str, list[str]]:
    """Return the sources as they are, and damaged in four ways."""
    rng, sources = random.Random(1), [pair.src for pair in pairs]
    return {
        "good": sources,
        "shuffled characters": ["".join(rng.sample(text, len(text))) for text in sources],
        "wrong language": [pair.tgt for pair in pairs],
        "twenty times the same": [text * 20 for text in sources],
        "unseen characters": [
            "".join(c if n % 2 else rng.choice(_UNSEEN) for n, c in enumerate(text)) for text in sources
        ],
    }


def warning_rates(
    translator: Translator, pairs: Sequence[Pair], search: SearchConfig, *, direction: Direction, **settings: Any
) -> dict[str, dict[str, float]]:
    """Return the percentage of lines with any warning, and with each kind, by input.

    `settings` are those of Translator.stream.
    """
    rates, texts = {}, inputs(pairs)
    results = translator.stream(chain(*texts.values()), search, direction=str(direction), scored=False, **settings)
    for name in texts:
        counts = Counter[str]()
        for result in islice(results, len(pairs)):
            counts.update({"any", *map(kind_of, result.warnings)} if result.warnings else ())
        rates[name] = {kind: 100 * counts[kind] / len(pairs) for kind in ("any", *KINDS)}
    return rates


def as_markdown(rates: dict[str, dict[str, float]], n: int) -> str:
    """Return the rates as a table for the model card."""
    kinds = list(rates["good"])
    lines = [f"| {' | '.join(['input', *kinds])} |", "| --- |" + " ---: |" * len(kinds)]
    lines += [f"| {' | '.join([name, *(f'{row[kind]:.1f}' for kind in kinds)])} |" for name, row in rates.items()]
    table = "\n".join(lines)
    return f"Percentage of lines with a warning, for {n:,} sentences as they are, and damaged:\n\n{table}"

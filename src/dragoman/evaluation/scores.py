"""Scores of a bundle on a test set, and rates of its warnings.

Hypotheses and references are saved beside the scores as plain lines, and scores.json holds the sacrebleu command that
gives the same numbers. Warnings are counted for sources as they are and damaged. A damaged source should have one; a
warning for a good source is a false alarm, unless the translation is bad.
"""

import dataclasses
import json
import random
import shlex
from collections import Counter
from collections.abc import Sequence
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any

from dragoman import files, metrics
from dragoman.config import SearchConfig
from dragoman.data.text import Pair, clean_text
from dragoman.errors import UserError
from dragoman.languages import Direction, is_chinese, primary
from dragoman.metrics import Score
from dragoman.translation.lines import KINDS, kind_of
from dragoman.translation.translator import Translator

HYPOTHESES, SCORES = "hypotheses.txt", "scores.json"
N_INPUTS = 5  # of `inputs`
# Characters of CJK Extension A, which hardly any corpus has.
_UNSEEN = "".join(map(chr, range(0x3400, 0x4DC0)))


def evaluate(
    translator: Translator,
    pairs: Sequence[Pair],
    folder: Path,
    search: SearchConfig,
    *,
    name: str,
    direction: Direction,
    **settings: Any,
) -> dict[str, dict[str, Score]]:
    """Translate and score the test set `name` in one direction; save all in `folder`.

    `settings` are those of Translator.stream: batch_tokens, progress. Returns the scores of "all" pairs and, where a
    test set has several corpora, those of each. An evaluation in `folder` is replaced; anything else is a UserError.
    """
    check_replaceable(folder, SCORES)
    sources, references = [pair.src for pair in pairs], [pair.references for pair in pairs]
    results = translator.stream(sources, search, direction=str(direction), **settings)
    hypotheses = [clean_text(result.text) for result in results]
    corpora = list(dict.fromkeys(pair.corpus for pair in pairs))
    scores = {}
    for part in ["all", *(corpora if len(corpora) > 1 else [])]:
        selected = [part in ("all", pair.corpus) for pair in pairs]
        texts, answers = list(compress(hypotheses, selected)), list(compress(references, selected))
        scores[part] = metrics.evaluate(hypotheses=texts, references=answers, tgt=direction.tgt)
    streams = {f"reference.{k}.txt": texts for k, texts in enumerate(metrics.reference_streams(references))}
    record = {
        "scores": {name: dataclasses.asdict(score) for name, score in scores["all"].items()},
        "parts": {part: {name: score.score for name, score in of.items()} for part, of in scores.items()},
        "check": shlex.join(["sacrebleu", *streams, "-i", HYPOTHESES, *_options(scores["all"], direction)]),
        "test_set": name,
        "sentences": len(hypotheses),
        "model": translator.bundle.meta.get("name"),
        "engine": translator.engine,
        "direction": str(direction),
        "search": dataclasses.asdict(search),
    }

    def fill(new: Path) -> None:
        for name, texts in {HYPOTHESES: hypotheses, "source.txt": sources, **streams}.items():
            (new / name).write_bytes("".join(text + "\n" for text in texts).encode())
        (new / SCORES).write_text(json.dumps(record, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

    files.replace_folder(folder, fill)
    return scores


def check_replaceable(folder: Path, file: str) -> None:
    """Raise UserError for a folder that is no evaluation, which has `file`."""
    if folder.exists() and not (folder / file).is_file() and (folder.is_file() or any(folder.iterdir())):
        raise UserError(f"{folder}: not an evaluation (no {file}). Name another --output")


def _options(scores: dict[str, Score], direction: Direction) -> list[str]:
    """Options with which the command of sacrebleu gives these scores."""
    tgt = "zh" if is_chinese(direction.tgt) else primary(direction.tgt)
    by_character = ["--ter-normalized", "--ter-asian-support"] if "asian:yes" in scores["ter"].signature else []
    return ["-m", *scores, "-l", f"{primary(direction.src)}-{tgt}", *by_character]


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
    results = translator.stream(chain(*texts.values()), search, direction=str(direction), **settings)
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

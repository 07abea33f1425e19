"""Scores of a bundle on a test set, with everything that is needed to repeat them.

Hypotheses and references are saved beside the scores as plain lines, and scores.json holds the sacrebleu command that
gives the same numbers.
"""

import dataclasses
import json
import re
import shlex
import time
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from dragoman import files, metrics
from dragoman.config import SearchConfig
from dragoman.data.text import clean_text
from dragoman.errors import UserError
from dragoman.evaluation.testsets import TestSet
from dragoman.languages import Direction
from dragoman.metrics import Score
from dragoman.translation.translator import Translator

HYPOTHESES, SCORES = "hypotheses.txt", "scores.json"


def evaluate(
    translator: Translator,
    test_set: TestSet,
    folder: Path,
    search: SearchConfig,
    *,
    direction: Direction,
    **settings: Any,
) -> dict[str, dict[str, Score]]:
    """Translate and score a test set in one direction; save all in `folder`.

    `settings` are those of Translator.stream: batch_tokens, progress. Returns the scores of "all" pairs and, where a
    test set has several corpora, those of each. An evaluation in `folder` is replaced; anything else is a UserError.
    """
    check_replaceable(folder, SCORES)
    sources, references = [pair.src for pair in test_set.pairs], [pair.references for pair in test_set.pairs]
    begin = time.monotonic()
    results = translator.stream(sources, search, direction=str(direction), scored=False, **settings)
    hypotheses = [clean_text(result.text) for result in results]
    seconds = time.monotonic() - begin
    corpora = list(dict.fromkeys(pair.corpus for pair in test_set.pairs))
    scores = {}
    for part in ["all", *(corpora if len(corpora) > 1 else [])]:
        selected = [part in ("all", pair.corpus) for pair in test_set.pairs]
        texts, answers = list(compress(hypotheses, selected)), list(compress(references, selected))
        scores[part] = metrics.evaluate(hypotheses=texts, references=answers, tgt=direction.tgt)
    streams = {f"reference.{k}.txt": texts for k, texts in enumerate(metrics.reference_streams(references))}
    record = {
        "scores": {name: dataclasses.asdict(score) for name, score in scores["all"].items()},
        "parts": {part: {name: score.score for name, score in of.items()} for part, of in scores.items()},
        "check": shlex.join(["sacrebleu", *streams, "-i", HYPOTHESES, *_options(scores["all"])]),
        "test_set": test_set.name,
        "sentences": len(hypotheses),
        "model": translator.bundle.meta.get("name"),
        "engine": translator.engine,
        "direction": str(direction),
        "search": dataclasses.asdict(search),
        "seconds": round(seconds, 2),
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
        raise UserError(f"{folder} exists and is no evaluation: it is left as it is. Name another --output")


def _options(scores: dict[str, Score]) -> Sequence[str]:
    """Options of the sacrebleu command, from the signatures of its scores."""
    tokenizer = re.search(r"tok:([\w-]+)", scores["bleu"].signature)
    chinese = ["--ter-normalized", "--ter-asian-support"] if "asian:yes" in scores["ter"].signature else []
    return ["-m", *scores, "-tok", tokenizer[1] if tokenizer else "13a", *chinese]

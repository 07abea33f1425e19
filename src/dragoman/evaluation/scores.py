"""Scores of a bundle on a test set, and comparison of systems.

Hypotheses and references are saved beside the scores as plain lines, for which sacrebleu's command gives the same
numbers. Significance is sacrebleu's: paired bootstrap resampling (Koehn 2004) and approximate randomization (Riezler &
Maxwell 2005), each system against the first.
"""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np
from sacrebleu import corpus_chrf, sentence_chrf
from sacrebleu.significance import PairedTest

from dragoman import files, metrics
from dragoman.bundle import evaluations, locate, read_json
from dragoman.config import SearchConfig
from dragoman.data.text import Pair, clean_text, lines
from dragoman.errors import UserError
from dragoman.evaluation.testsets import count_passed, of_files, read_challenge
from dragoman.languages import Direction, is_unspaced, reads
from dragoman.metrics import LOWER_IS_BETTER, METRICS, Score, reference_streams
from dragoman.translation.ctranslate2 import SEARCHES
from dragoman.translation.translator import Translator

HYPOTHESES, SCORES, CHALLENGE = "hypotheses.txt", "scores.json", "challenge.json"
N_SAMPLES = {"bs": 1000, "ar": 2000}  # of bootstrap and of randomization
SIGNIFICANT = 0.05
N_SENTENCES = 20
# Metric -> {percentage of system pairs in which metric and human judges prefer the same system: smallest difference
# of scores for it} (Kocmi et al. 2024, "Navigating the Metrics Maze", ACL, appendix).
AGREEMENT = {
    "bleu": {50: 0.27, 55: 0.52, 60: 0.78, 65: 1.06, 70: 1.39, 75: 1.79, 80: 2.34, 85: 3.35},
    "chrf": {50: 0.14, 55: 0.33, 60: 0.54, 65: 0.76, 70: 1.00, 75: 1.28, 80: 1.63, 85: 2.12, 90: 3.05},
}
Scores = Mapping[str, dict[str, Any]]  # metric -> name, score, bootstrap mean and 95 % interval, p of both tests


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
    test set has several corpora, those of each. An evaluation of the same test set in `folder` is replaced.
    """
    check_replaceable(folder, SCORES)
    sources, references = [pair.src for pair in pairs], [pair.references for pair in pairs]
    if not reads(direction.src, "\n".join(sources)):
        hint = f"If a TSV has {direction.tgt} first, write {direction.tgt}<TAB>{direction.src} as its first line"
        raise UserError(f"{name}: the sources are not in the script of '{direction.src}'. {hint}")
    if (folder / SCORES).exists() and list(lines(folder / "source.txt")) != sources:
        raise UserError(f"{folder}: holds the scores of another test set. Name another --output")
    results = translator.stream(sources, search, direction=str(direction), scored=False, **settings)
    hypotheses = [clean_text(result.text) for result in results]
    corpora = list(dict.fromkeys(pair.corpus for pair in pairs))
    scores = {}
    for part in ["all", *(corpora if len(corpora) > 1 else [])]:
        selected = [part in ("all", pair.corpus) for pair in pairs]
        texts, gold = list(compress(hypotheses, selected)), list(compress(references, selected))
        scores[part] = metrics.evaluate(hypotheses=texts, references=gold, tgt=direction.tgt)
    streams = {f"reference.{k}.txt": texts for k, texts in enumerate(reference_streams(references))}
    record = {
        "scores": {name: dataclasses.asdict(score) for name, score in scores["all"].items()},
        "parts": {part: {name: score.score for name, score in of.items()} for part, of in scores.items()},
        "test_set": name,
        "sentences": len(hypotheses),
        "model": translator.bundle.meta.get("name"),
        "engine": translator.engine if search.kind in SEARCHES else "torch",
        "direction": str(direction),
        "search": dataclasses.asdict(search),
    }

    def fill(new: Path) -> None:
        for name, texts in {HYPOTHESES: hypotheses, "source.txt": sources, **streams}.items():
            (new / name).write_bytes("".join(text + "\n" for text in texts).encode())
        (new / SCORES).write_text(json.dumps(record, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

    files.replace_folder(folder, fill)
    return scores


def challenge(
    translator: Translator, path: Path, folder: Path, search: SearchConfig | None = None, *, direction: str
) -> dict[str, tuple[int, int]]:
    """Translate a challenge set, save all in `folder`; return testsets.count_passed."""
    check_replaceable(folder, CHALLENGE)
    sentences = read_challenge(path)
    sources = [sentence.source for sentence in sentences]
    texts = [result.text for result in translator.translate(sources, search, direction=direction)]
    rows = [[*sentence, text, sentence.passes(text)] for sentence, text in zip(sentences, texts, strict=True)]
    passed = count_passed(sentences, texts)
    record = {"passed": passed, "sentences": rows, "model": translator.bundle.meta.get("name")}
    content = json.dumps(record, ensure_ascii=False, indent=2)
    files.replace_folder(folder, lambda new: (new / CHALLENGE).write_text(content, encoding="utf-8"))
    return passed


def check_replaceable(folder: Path, file: str) -> None:
    """Raise UserError if a non-empty folder has no `file`."""
    if folder.exists() and not (folder / file).is_file() and (folder.is_file() or any(folder.iterdir())):
        raise UserError(f"{folder}: not an evaluation (no {file}). Name another --output")


class Outputs(NamedTuple):
    """Translations of one system in the language `tgt`, with the test set."""

    name: str
    tgt: str
    pairs: list[Pair]
    hypotheses: list[str]


def of_evaluation(folder: Path) -> Outputs:
    """Read a folder of scripts/evaluate.py, or the single evaluation of a run."""
    of_run = [*folder.glob(f"evaluation/*/{SCORES}")] or evaluations(locate(folder)).glob(f"*/{SCORES}")
    records = [*folder.glob(SCORES), *sorted(of_run)]
    if len(records) != 1:
        names = ", ".join(str(file.parent) for file in records) or f"none: run scripts/evaluate.py --model {folder}"
        raise UserError(f"{folder}: name one evaluation (found {names})")
    name, folder, record = str(folder), records[0].parent, read_json(records[0])
    pairs = of_files(folder / "source.txt", sorted(folder.glob("reference.*.txt")))
    tgt = record["direction"].partition("_")[2]
    return Outputs(name, tgt, pairs, list(lines(folder / HYPOTHESES)))


def compare(systems: Sequence[Outputs]) -> dict[str, Any]:
    """Compare all systems with the first. Raises UserError for different test sets."""
    first = systems[0]
    for other in systems[1:]:
        if other.tgt != first.tgt:
            raise UserError(f"{other.name}: into {other.tgt}, but {first.name}: into {first.tgt}. Set --tgt for files")
        if other.pairs != first.pairs:
            raise UserError(f"{other.name}: another test set than that of {first.name}. Evaluate both on the same")
    named = {f"{n} {system.name}": system for n, system in enumerate(systems, 1)}
    baseline, *others = named
    metrics = {metric: make(first.tgt) for metric, make in METRICS.items()}
    texts: list[Any] = [(name, system.hypotheses) for name, system in named.items()]
    streams = reference_streams([pair.references for pair in first.pairs])
    # Of the 2^n exchanges of n different translations, two have the same difference; sacrebleu does not count them.
    n_different = [sum(map(str.__ne__, first.hypotheses, system.hypotheses)) for system in systems]
    tests: Any = [PairedTest(texts, metrics, streams, kind, n)()[1] for kind, n in N_SAMPLES.items()]
    scores: dict[str, Any] = {name: {} for name in named}
    for metric, title in zip(metrics, list(tests[0])[1:], strict=True):  # the first list has the systems' names
        for name, n, one, two in zip(named, n_different, *(test[title] for test in tests), strict=True):
            score = {"name": title, "score": one.score, "mean": float(one.mean), "ci": float(one.ci)}
            p = None if two.p_value is None else max(two.p_value, min(1.0, 2.0 ** (1 - n)))
            scores[name][metric] = score | {"p": [one.p_value, p]}  # None for the first
    return {
        "sentences": len(first.pairs),
        "signatures": [str(metric.get_signature()) for metric in metrics.values()],
        "scores": scores,
        "groups": {
            "characters of the source": _by_quarter(named, [len(pair.src) for pair in first.pairs]),
            "mean frequency of the words": _by_quarter(named, _frequencies(first)),
        },
        "won": {name: _most_different(first, named[name]) for name in others},
        "verdicts": {name: _verdicts(baseline, name, scores) for name in others},
    }


def _frequencies(system: Outputs) -> list[int]:
    """Return the geometric mean frequency of the words of each reference."""
    words = [set(re.findall(r"\w" if is_unspaced(system.tgt) else r"\w+", pair.tgt.lower())) for pair in system.pairs]
    counts = Counter(word for each in words for word in each)
    return [round(geometric_mean([counts[word] for word in each] or [1])) for each in words]


def _by_quarter(systems: Mapping[str, Outputs], sizes: Sequence[int]) -> dict[str, dict[str, float]]:
    """Quarter of the sentences by size -> their number, and chrF of each system."""
    table = {}
    for n, rows in enumerate(np.array_split(np.argsort(sizes, kind="stable"), min(4, len(sizes))), 1):
        row = table[f"quarter {n}: {sizes[rows[0]]} to {sizes[rows[-1]]}"] = {"sentences": float(len(rows))}
        for name, system in systems.items():
            texts, references = [system.hypotheses[i] for i in rows], [system.pairs[i].references for i in rows]
            row[name] = corpus_chrf(texts, reference_streams(references)).score
    return table


def _most_different(first: Outputs, other: Outputs) -> dict[str, list[list[str]]]:
    """Sentences with the largest gains and losses in chrF, with both outputs."""
    gains = []
    for pair, *texts in zip(first.pairs, first.hypotheses, other.hypotheses, strict=True):
        before, after = (sentence_chrf(text, pair.references).score for text in texts)
        gains.append((after - before, [pair.src, pair.tgt, *texts]))
    gains.sort(reverse=True)
    won = [row for gain, row in gains[:N_SENTENCES] if gain > 0]
    lost = [row for gain, row in gains[: -N_SENTENCES - 1 : -1] if gain < 0]
    return {"won": won, "lost": lost}


def _verdicts(first: str, other: str, scores: Mapping[str, Scores]) -> list[str]:
    """Return which is better (p < 0.05 in both tests) and what the differences mean."""
    better, worse, meanings = list[str](), list[str](), list[str]()
    for metric, score in scores[other].items():
        difference = score["score"] - scores[first][metric]["score"]
        text = f"{score['name']} {difference:+.2f}"
        if max(score["p"]) < SIGNIFICANT and difference:
            (better if (difference > 0) != (metric in LOWER_IS_BETTER) else worse).append(text)
        if metric in AGREEMENT:
            shares = [share for share, least in AGREEMENT[metric].items() if least <= abs(difference)]
            meanings.append(f"{text} in {f'at least {shares[-1]} %' if shares else 'less than 50 %'}")
    verdict = f"{other} is not distinguishable from {first} at p < {SIGNIFICANT}"
    if better and worse:
        verdict += f" (the metrics disagree: {', '.join(better + worse)})"
    elif better or worse:
        word = "better" if better else "worse"
        verdict = f"{other} is {word} than {first} at p < {SIGNIFICANT}: {', '.join(better or worse)}"
    meaning = f"With such differences human judges prefer the same system: {', '.join(meanings)} of pairs of systems"
    return [f"{verdict}.", f"{meaning} (Kocmi et al. 2024)."] if better or worse else [f"{verdict}."]

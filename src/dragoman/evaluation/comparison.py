"""Comparison of systems: scores, significance, groups, sentences won and lost.

Significance is sacrebleu's: paired bootstrap resampling (Koehn 2004) and approximate randomization (Riezler & Maxwell
2005), each system against the first.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dragoman.bundle import read_json
from dragoman.data.lines import lines
from dragoman.data.text import Pair
from dragoman.errors import UserError
from dragoman.evaluation.scores import HYPOTHESES, SCORES
from dragoman.evaluation.testsets import of_files
from dragoman.languages import is_unspaced
from dragoman.metrics import LOWER_IS_BETTER, METRICS, reference_streams

N_SAMPLES = {"bs": 1000, "ar": 2000}  # of bootstrap and of randomization
SIGNIFICANT = 0.05
N_SENTENCES = 20
# Percentage -> smallest difference of scores at which a metric and human judges prefer the same system in that
# percentage of pairs (Kocmi et al. 2024, "Navigating the Metrics Maze", ACL, appendix).
AGREEMENT = {
    "bleu": {50: 0.27, 55: 0.52, 60: 0.78, 65: 1.06, 70: 1.39, 75: 1.79, 80: 2.34, 85: 3.35},
    "chrf": {50: 0.14, 55: 0.33, 60: 0.54, 65: 0.76, 70: 1.00, 75: 1.28, 80: 1.63, 85: 2.12, 90: 3.05},
}
Scores = Mapping[str, dict[str, Any]]  # metric -> name, score, interval, p of both tests


class Outputs(NamedTuple):
    """Translations of one system in the language `tgt`, with the test set."""

    name: str
    tgt: str
    pairs: list[Pair]
    hypotheses: list[str]


def of_evaluation(folder: Path) -> Outputs:
    """Read a folder that scripts/evaluate.py has written, or the only one of a run."""
    files = [*folder.glob(SCORES), *sorted(folder.glob(f"evaluation/*/{SCORES}"))]
    if len(files) != 1:
        names = ", ".join(str(file.parent) for file in files) or "none"
        raise UserError(f"{folder}: not one evaluation (found {names}). Name one folder of scripts/evaluate.py")
    folder, record = files[0].parent, read_json(files[0])
    pairs = of_files(folder / "source.txt", sorted(folder.glob("reference.*.txt")))
    tgt = record["direction"].partition("_")[2]
    return Outputs(str(record["model"] or folder), tgt, pairs, list(lines(folder / HYPOTHESES)))


def compare(systems: Sequence[Outputs]) -> dict[str, Any]:
    """Compare all systems with the first. Raises UserError for different test sets."""
    first = systems[0]
    for other in systems[1:]:
        if (other.pairs, other.tgt) != (first.pairs, first.tgt):
            raise UserError(f"{other.name}: another test set than that of {first.name}. Evaluate both on the same")
    named = {f"{n} {system.name}": system for n, system in enumerate(systems, 1)}
    signatures, scores = _significance(named)
    baseline, *others = named
    return {
        "sentences": len(first.pairs),
        "signatures": signatures,
        "scores": scores,
        "groups": {title: _by_group(named, groups) for title, groups in _groups(first).items()},
        "won": {name: _most_different(first, named[name]) for name in others},
        "verdicts": [_verdict(baseline, name, scores) for name in others],
        "readers": [_meaning(name, scores[baseline], scores[name]) for name in others],
    }


def _significance(systems: Mapping[str, Outputs]) -> tuple[list[str], dict[str, Scores]]:
    """Return the signatures, and the scores of each system: `p` is None for the first."""
    from sacrebleu.significance import PairedTest

    first = next(iter(systems.values()))
    metrics = {metric: make(first.tgt) for metric, make in METRICS.items()}
    texts: list[Any] = [(name, system.hypotheses) for name, system in systems.items()]
    streams, tests = reference_streams([pair.references for pair in first.pairs]), list[dict[str, Any]]()
    for kind, n_samples in N_SAMPLES.items():
        _, results = PairedTest(texts, metrics, streams, test_type=kind, n_samples=n_samples)()
        tests.append(results)
    del results["System"]
    scores: dict[str, Any] = {name: {} for name in systems}
    for n, name in enumerate(scores):
        for metric, title in zip(metrics, results, strict=True):
            bootstrap, randomization = (test[title][n] for test in tests)
            interval, p = f"{bootstrap.mean:.2f} ± {bootstrap.ci:.2f}", [bootstrap.p_value, randomization.p_value]
            scores[name][metric] = {"name": title, "score": bootstrap.score, "interval": interval, "p": p}
    return [str(metric.get_signature()) for metric in metrics.values()], scores


def _groups(system: Outputs) -> dict[str, dict[str, list[int]]]:
    """Sentences by length of the source and by the reference's rarest word."""
    sizes, by_length = np.array([len(pair.src) for pair in system.pairs]), dict[str, list[int]]()
    quarter = np.searchsorted(np.quantile(sizes, (0.25, 0.5, 0.75)), sizes)
    for n in np.unique(quarter):
        rows = np.flatnonzero(quarter == n)
        by_length[f"{sizes[rows].min()} to {sizes[rows].max()} characters"] = rows.tolist()
    words = [re.findall(r"\w" if is_unspaced(system.tgt) else r"\w+", pair.tgt.lower()) for pair in system.pairs]
    counts = Counter(word for each in words for word in set(each))
    rarest = [min((counts[word] for word in each), default=0) for each in words]
    limits = {"once": (0, 1), "2 to 5 times": (2, 5), "more often": (6, len(words))}
    by_rarity = {name: [i for i, n in enumerate(rarest) if a <= n <= b] for name, (a, b) in limits.items()}
    return {"source length": by_length, "rarest word stands": {name: rows for name, rows in by_rarity.items() if rows}}


def _by_group(systems: Mapping[str, Outputs], groups: dict[str, list[int]]) -> dict[str, dict[str, float]]:
    """Group -> number of sentences, and chrF of each system."""
    table = {}
    for group, rows in groups.items():
        table[group] = {"sentences": float(len(rows))}
        for name, system in systems.items():
            streams = reference_streams([system.pairs[i].references for i in rows])
            chrf = METRICS["chrf"](system.tgt).corpus_score([system.hypotheses[i] for i in rows], streams)
            table[group][name] = chrf.score
    return table


def _most_different(first: Outputs, other: Outputs) -> dict[str, list[list[str]]]:
    """Sentences with the largest gains and losses in chrF, with both outputs."""
    chrf = METRICS["chrf"](first.tgt)
    gains = []
    for pair, *texts in zip(first.pairs, first.hypotheses, other.hypotheses, strict=True):
        before, after = (chrf.sentence_score(text, pair.references).score for text in texts)
        gains.append((after - before, [pair.src, pair.tgt, *texts]))
    gains.sort(key=lambda gain: gain[0])
    lost = [row for gain, row in gains[:N_SENTENCES] if gain < 0]
    won = [row for gain, row in gains[: -N_SENTENCES - 1 : -1] if gain > 0]
    return {"won": won, "lost": lost}


def _verdict(first: str, other: str, scores: Mapping[str, Scores]) -> str:
    """One sentence: better, worse, or not distinguishable."""
    better, worse = list[str](), list[str]()
    for metric, score in scores[other].items():
        difference = score["score"] - scores[first][metric]["score"]
        if max(score["p"]) < SIGNIFICANT and difference:
            gains = (difference < 0) if metric in LOWER_IS_BETTER else difference > 0
            (better if gains else worse).append(f"{score['name']} {difference:+.2f}")
    if bool(better) == bool(worse):
        mixed = f" (the metrics disagree: {', '.join(better + worse)})" if better else ""
        return f"{other} is not distinguishable from {first} at p < {SIGNIFICANT}{mixed}."
    word = "better" if better else "worse"
    return f"{other} is {word} than {first} at p < {SIGNIFICANT}: {', '.join(better or worse)}."


def _meaning(other: str, first: Scores, scores: Scores) -> str:
    """One sentence on what differences of this size mean to readers."""
    parts = []
    for metric, thresholds in AGREEMENT.items():
        difference = abs(scores[metric]["score"] - first[metric]["score"])
        share = max((share for share, least in thresholds.items() if least <= difference), default=None)
        size = f"at least {share} %" if share else "less than 50 %"
        parts.append(f"a difference of {difference:.2f} {scores[metric]['name']} agrees with human judges in {size}")
    return f"{other}: {', '.join(parts)} of pairs of systems (Kocmi et al. 2024)."

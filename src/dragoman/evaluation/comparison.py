"""Comparison of systems: scores, significance, groups, sentences won and lost.

Significance is sacrebleu's: paired bootstrap resampling (Koehn 2004) and approximate randomization (Riezler & Maxwell
2005), each system against the first.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.data.lines import lines
from dragoman.data.text import clean_text
from dragoman.errors import UserError
from dragoman.evaluation.testsets import TestSet
from dragoman.languages import Direction, is_unspaced
from dragoman.metrics import LOWER_IS_BETTER, METRICS, evaluate, reference_streams
from dragoman.translation.translator import Translator

N_SAMPLES = {"bs": 1000, "ar": 2000}  # of bootstrap and of randomization
SIGNIFICANT = 0.05
N_SENTENCES = 20
# Share of pairs of systems, in percent -> smallest difference with which a metric agrees with human judges so often.
# Kocmi et al. 2024, "Navigating the Metrics Maze", ACL, appendix: thresholds of BLEU and chrF.
AGREEMENT = {
    "bleu": {50: 0.27, 55: 0.52, 60: 0.78, 65: 1.06, 70: 1.39, 75: 1.79, 80: 2.34, 85: 3.35},
    "chrf": {50: 0.14, 55: 0.33, 60: 0.54, 65: 0.76, 70: 1.00, 75: 1.28, 80: 1.63, 85: 2.12, 90: 3.05},
}


@dataclass(kw_only=True)
class Outputs:
    """Translations of one system in the language `tgt`, with the test set."""

    name: str
    tgt: str
    sources: list[str]
    references: list[list[str]]
    hypotheses: list[str]


def of_evaluation(folder: Path) -> Outputs:
    """Read a folder that scripts/evaluate.py has written, or the only one of a run."""
    if not (folder / "scores.json").is_file():
        inside = sorted(path.parent for path in folder.glob("evaluation/*/scores.json"))
        if len(inside) != 1:
            names = f" (found {', '.join(map(str, inside))})" if inside else ""
            raise UserError(f"{folder}: not an evaluation{names}. Name one folder of scripts/evaluate.py")
        folder = inside[0]
    record = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    streams = [list(lines(path)) for path in sorted(folder.glob("reference.*.txt"))]
    references = [list(dict.fromkeys(texts)) for texts in zip(*streams, strict=True)]
    sides = {name: list(lines(folder / f"{name}.txt")) for name in ("source", "hypotheses")}
    name = str(record["model"] or folder)
    return Outputs(
        name=name,
        tgt=record["direction"].partition("_")[2],
        sources=sides["source"],
        references=references,
        hypotheses=sides["hypotheses"],
    )


def of_file(path: Path, src: Path, references: Sequence[Path], tgt: str) -> Outputs:
    """Read hypotheses line by line, with the sources and references of all systems."""
    texts = [[clean_text(line) for line in lines(file)] for file in (src, path, *references)]
    if len({len(each) for each in texts}) > 1:
        counts = ", ".join(f"{file} {len(each)}" for file, each in zip((src, path, *references), texts, strict=True))
        raise UserError(f"{path}: files of different lengths ({counts}). Each line is one sentence")
    sources, hypotheses, *streams = texts
    each = [list(dict.fromkeys(filter(None, row))) for row in zip(*streams, strict=True)]
    return Outputs(name=path.name, tgt=tgt, sources=sources, references=each, hypotheses=hypotheses)


def of_bundle(folder: Path, test_set: TestSet, direction: Direction) -> Outputs:
    """Translate a test set with a bundle, or that of a run, by its search settings."""
    sources = [pair.src for pair in test_set.pairs]
    results = Translator.load(folder).stream(sources, direction=str(direction), scored=False)
    return Outputs(
        name=str(folder),
        tgt=direction.tgt,
        sources=sources,
        references=[list(pair.references) for pair in test_set.pairs],
        hypotheses=[clean_text(result.text) for result in results],
    )


def compare(systems: Sequence[Outputs]) -> dict[str, Any]:
    """Compare all systems with the first. Raises UserError for different test sets."""
    first = systems[0]
    for other in systems[1:]:
        if (other.sources, other.references, other.tgt) != (first.sources, first.references, first.tgt):
            raise UserError(f"{other.name}: another test set than that of {first.name}. Evaluate both on the same")
    names = [f"{n} {system.name}" for n, system in enumerate(systems, 1)]
    scores = {}
    for name, system in zip(names, systems, strict=True):
        scores[name] = evaluate(hypotheses=system.hypotheses, references=system.references, tgt=system.tgt)
    tests = {kind: _significance(names, systems, kind) for kind in N_SAMPLES}
    return {
        "sentences": len(first.sources),
        "signatures": [score.signature for score in scores[names[0]].values()],
        "scores": {name: {key: score.score for key, score in of.items()} for name, of in scores.items()},
        "p": {kind: {name: p for name, (p, _) in of.items()} for kind, of in tests.items()},
        "intervals": {name: interval for name, (_, interval) in tests["bs"].items()},
        "groups": {title: _by_group(names, systems, of) for title, of in _groups(first).items()},
        "won": {name: _most_different(first, other) for name, other in zip(names[1:], systems[1:], strict=True)},
        "verdicts": [_verdict(names[0], name, scores, tests) for name in names[1:]],
        "readers": [_meaning(name, scores[names[0]], scores[name]) for name in names[1:]],
    }


def _significance(
    names: Sequence[str], systems: Sequence[Outputs], kind: str
) -> dict[str, tuple[dict[str, float | None], dict[str, str]]]:
    """Name -> p-value by metric (None for the first), mean and 95 % interval."""
    from sacrebleu.significance import PairedTest

    metrics = {metric: make(systems[0].tgt) for metric, make in METRICS.items()}
    outputs: list[Any] = [(name, system.hypotheses) for name, system in zip(names, systems, strict=True)]
    streams = reference_streams(systems[0].references)
    _, results = PairedTest(outputs, metrics, streams, test_type=kind, n_samples=N_SAMPLES[kind])()
    answer = {}
    for n, name in enumerate(names):
        values: dict[str, Any] = {m: results[key][n] for m in metrics for key in results if key.lower().startswith(m)}
        p = {metric: value.p_value for metric, value in values.items()}
        spread = {m: f"{v.mean:.2f} ± {v.ci:.2f}" for m, v in values.items() if v.mean is not None}
        answer[name] = p, spread
    return answer


def _groups(system: Outputs) -> dict[str, dict[str, list[int]]]:
    """Sentences by length of the source and by the reference's rarest word."""
    sizes = list(map(len, system.sources))
    ordered = sorted(range(len(sizes)), key=sizes.__getitem__)
    quarters = [ordered[len(ordered) * n // 4 : len(ordered) * (n + 1) // 4] for n in range(4)]
    by_length = {f"{sizes[q[0]]} to {sizes[q[-1]]} characters": q for q in quarters if q}
    words = [re.findall(r"\w" if is_unspaced(system.tgt) else r"\w+", refs[0].lower()) for refs in system.references]
    counts = Counter(word for each in words for word in set(each))
    rarest = [min((counts[word] for word in each), default=0) for each in words]
    limits = {"once": (0, 1), "2 to 5 times": (2, 5), "more often": (6, len(words))}
    by_rarity = {name: [i for i, n in enumerate(rarest) if a <= n <= b] for name, (a, b) in limits.items()}
    return {"source length": by_length, "rarest word stands": {name: rows for name, rows in by_rarity.items() if rows}}


def _by_group(
    names: Sequence[str], systems: Sequence[Outputs], groups: dict[str, list[int]]
) -> dict[str, dict[str, float]]:
    """Group -> number of sentences, and chrF of each system."""
    table = {}
    for group, rows in groups.items():
        table[group] = {"sentences": float(len(rows))}
        for name, system in zip(names, systems, strict=True):
            texts, references = [system.hypotheses[i] for i in rows], [system.references[i] for i in rows]
            scores = evaluate(hypotheses=texts, references=references, tgt=system.tgt, metrics=["chrf"])
            table[group][name] = scores["chrf"].score
    return table


def _most_different(first: Outputs, other: Outputs) -> dict[str, list[list[str]]]:
    """Sentences with the largest gains and losses in chrF, with both outputs."""
    chrf = METRICS["chrf"](first.tgt)
    gains = []
    for i, references in enumerate(first.references):
        a, b = (chrf.sentence_score(each.hypotheses[i], references).score for each in (first, other))
        gains.append((b - a, i))

    def shown(chosen: list[tuple[float, int]]) -> list[list[str]]:
        return [[first.sources[i], first.references[i][0], first.hypotheses[i], other.hypotheses[i]] for _, i in chosen]

    ordered = sorted(gains)
    worse = [gain for gain in ordered if gain[0] < 0][:N_SENTENCES]
    better = [gain for gain in reversed(ordered) if gain[0] > 0][:N_SENTENCES]
    return {"won": shown(better), "lost": shown(worse)}


def _verdict(first: str, other: str, scores: dict[str, Any], tests: dict[str, Any]) -> str:
    """One sentence: better, worse, or not distinguishable."""
    better, worse = list[str](), list[str]()
    for metric, score in scores[other].items():
        difference = score.score - scores[first][metric].score
        if max(tests[kind][other][0][metric] for kind in tests) < SIGNIFICANT and difference:
            gains = (difference < 0) if metric in LOWER_IS_BETTER else difference > 0
            (better if gains else worse).append(f"{score.name} {difference:+.2f}")
    if bool(better) == bool(worse):
        mixed = f" (the metrics disagree: {', '.join(better + worse)})" if better else ""
        return f"{other} is not distinguishable from {first} at p < {SIGNIFICANT}{mixed}."
    word = "better" if better else "worse"
    return f"{other} is {word} than {first} at p < {SIGNIFICANT}: {', '.join(better or worse)}."


def _meaning(other: str, first: dict[str, Any], scores: dict[str, Any]) -> str:
    """One sentence on what differences of this size mean to readers."""
    parts = []
    for metric, thresholds in AGREEMENT.items():
        difference = abs(scores[metric].score - first[metric].score)
        share = max((share for share, least in thresholds.items() if least <= difference), default=None)
        size = f"at least {share} %" if share else "less than 50 %"
        parts.append(f"a difference of {difference:.2f} {scores[metric].name} agrees with human judges in {size}")
    return f"{other}: {', '.join(parts)} of pairs of systems (Kocmi et al. 2024)."

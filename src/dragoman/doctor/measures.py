"""Measures of a corpus that are neither right nor wrong: lengths, ratios, characters, tokens.

Knows: histograms of bounded size, which characters a vocabulary would leave out, and what a quick tokenizer makes
of a sample. Refuses to know: findings, how a report looks.
"""

import tempfile
from pathlib import Path

import numpy as np

from dragoman.data.collate import flatten
from dragoman.data.encoding import GRACE
from dragoman.data.prepare import DataConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.doctor.survey import Survey
from dragoman.errors import UserError

BARS = 40
MOST_LOST = 200  # characters listed
SHARES = (0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 1.0)


def lengths(values: np.ndarray) -> dict[str, object]:
    """Of sentences in characters: quantiles, and a histogram up to the 99.5th percentile, the rest in its last bar."""
    if not len(values):
        return {"n": 0}
    most = max(BARS, int(np.quantile(values, 0.995)) + 1)
    width = -(-most // BARS)
    bars = np.bincount(np.minimum(values // width, BARS), minlength=BARS + 1)
    quantiles = {f"{share:g}": int(np.quantile(values, share)) for share in (0.01, 0.5, 0.99, 1)}
    return {
        "n": len(values),
        "mean": round(float(values.mean()), 2),
        "quantiles": quantiles,
        "width": width,
        "bars": bars.tolist(),
    }


def ratios(src: np.ndarray, tgt: np.ndarray) -> dict[str, object]:
    """Target characters per source character: a histogram over powers of two, from 1/32 to 32, four bars to each."""
    if not len(src):
        return {"n": 0}
    power = np.log2((tgt + 1) / (src + 1))
    bars = np.bincount(np.clip(np.rint((power + 5) * 4), 0, 40).astype(np.int64), minlength=41)
    return {
        "n": len(src),
        "median": round(float(2 ** np.median(power)), 3),
        "least_power": -5,
        "bars_per_power": 4,
        "bars": bars.tolist(),
    }


def coverage(counts: np.ndarray, wanted: float) -> dict[str, object]:
    """How many of the most frequent characters make up which share of a text, and which a vocabulary that covers
    `wanted` of it leaves out. counts: (POINTS,), how often each occurs."""
    points = np.flatnonzero(counts)
    points = points[(points != ord(" "))]
    order = points[np.lexsort((points, -counts[points]))]
    total = int(counts[order].sum())
    sums = np.cumsum(counts[order]) / max(total, 1)
    need = {f"{share:g}": min(int(np.searchsorted(sums, share - 1e-12)) + 1, len(order)) for share in SHARES}
    lost = order[min(int(np.searchsorted(sums, wanted - 1e-12)) + 1, len(order)) :]
    return {
        "characters": total,
        "different": len(order),
        "needed": need,
        "wanted": wanted,
        "n_lost": len(lost),
        "lost_occurrences": int(counts[lost].sum()),
        "lost": [[chr(point), int(counts[point])] for point in lost[:MOST_LOST].tolist()],
    }


def tokens(survey: Survey, config: DataConfig) -> dict[str, object]:
    """What a tokenizer trained on the survey's sample makes of it, and what data.max_length and data.max_ratio would
    drop. `error` in place of all that where none can be trained."""
    sides = [[pair[side] for pair in survey.sample] for side in (0, 1)]
    try:
        src, tgt = _tokenizers(sides, config)
    except UserError as error:
        return {"pairs": len(survey.sample), "error": str(error)}
    pieces = [
        flatten(each.encode_batch(texts))[1] for each, texts in zip((src, tgt), sides, strict=True)
    ]  # two (n,)
    longer, shorter = np.maximum(*pieces), np.minimum(*pieces)
    ratio = longer / (shorter + GRACE)
    long, unequal = longer > config.max_length, (ratio > config.max_ratio) & (longer <= config.max_length)
    return {
        "pairs": len(survey.sample),
        "vocabulary": [len(src), len(tgt)],
        "per_character": [
            round(float(each.sum()) / max(1, sum(map(len, texts))), 3)
            for each, texts in zip(pieces, sides, strict=True)
        ],
        "per_sentence": [round(float(each.mean()), 2) for each in pieces],
        "longer_side": {f"{share:g}": int(np.quantile(longer, share)) for share in (0.5, 0.99, 0.999, 1)},
        "ratio": {f"{share:g}": round(float(np.quantile(ratio, share)), 2) for share in (0.5, 0.99, 0.999)},
        "too_long": round(float(long.mean()), 5),
        "unequal": round(float(unequal.mean()), 5) if config.max_ratio else 0.0,
    }


def _tokenizers(sides: list[list[str]], config: DataConfig) -> tuple[Tokenizer, Tokenizer]:
    with tempfile.TemporaryDirectory() as folder:
        if config.tokenizer.vocabulary == "joint":
            languages = [config.src, config.tgt]
            joint = Tokenizer.train(sides[0] + sides[1], config.tokenizer, Path(folder) / "joint", languages)
            return joint, joint
        one, other = (
            Tokenizer.train(texts, config.tokenizer, Path(folder) / language, [language])
            for texts, language in zip(sides, (config.src, config.tgt), strict=True)
        )
        return one, other

"""The pairs most likely to be wrong, and why.

Knows: how to add up unlike reasons: evidence against a pair in nats, and for each fault the nats a person would
give it. Pairs suspected for the same reason give way to others after a few, or twenty would teach what one does.
Refuses to know: texts.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from dragoman.doctor.alignment import Evidence
from dragoman.doctor.faults import BIT, COPY, EMPTY, HTML, MOJIBAKE, REPLACED, SCRIPT, SWAPPED, TAG, TOO_LONG
from dragoman.doctor.survey import MARKS, Survey

MOST, MOST_ALIKE = 20, 5
LEAST = 2.0  # nats of suspicion, below which nobody is a suspect
NATS = {
    SWAPPED: 8.0, MOJIBAKE: 7.0, "invalid UTF-8": 7.0, REPLACED: 6.0, TOO_LONG: 6.0, COPY: 5.0, SCRIPT: 5.0, EMPTY: 4.0,
    TAG: 2.0, HTML: 1.0,
}  # fmt: skip
ODD = 4.0  # standard deviations of the logarithm of the ratio of lengths, beyond which each counts a nat more


class Suspect(NamedTuple):
    """A pair, how suspicious it is in nats, and the reasons."""

    row: int
    nats: float
    reasons: list[str]


def suspects(survey: Survey) -> list[Suspect]:
    """The MOST suspicious pairs of all splits, the worst first."""
    table, n = survey.table, len(survey.table.line)
    evidence, odd, usual = np.zeros((3, n), np.float32), np.zeros(n, np.float32), np.ones(n, np.float32)
    for part in survey.parts:
        rows = slice(part.first, part.last)
        evidence[:, rows] = Evidence(table.at(rows)).of()
        odd[rows], usual[rows] = _odd(table.src_length[rows], table.tgt_length[rows])
    score = -evidence.sum(axis=0) + np.maximum(np.abs(odd) - ODD, 0)
    for name, nats in NATS.items():
        score[(table.faults & BIT[name]) > 0] += nats
    alike: Counter[str] = Counter()
    seen: Counter[tuple[int, int]] = Counter()
    chosen: list[Suspect] = []
    others: list[Suspect] = []
    for row in _worst(score, 50 * MOST):
        if score[row] < LEAST:
            break
        reasons = _reasons(survey, row, evidence[:, row], float(odd[row]), float(usual[row]))
        text, kind = (int(table.src_hash[row]), int(table.tgt_hash[row])), reasons[0].split(":")[0]
        if any(text) and seen[text]:
            continue
        among = chosen if alike[kind] < MOST_ALIKE else others
        among.append(Suspect(row, round(float(score[row]), 1), reasons))
        alike[kind] += 1
        seen[text] += 1
    return sorted((chosen + others)[:MOST], key=lambda suspect: -suspect.nats)


def _worst(score: np.ndarray, n: int) -> list[int]:
    n = min(n, len(score))
    worst = np.argpartition(-score, n - 1)[:n] if n else np.empty(0, np.int64)
    return worst[np.lexsort((worst, -score[worst]))].tolist()


def _odd(src: np.ndarray, tgt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By how many standard deviations the ratio of lengths is off, robustly; and target characters per source's."""
    ratio = np.log((tgt + 1) / (src + 1))
    middle = np.median(ratio) if len(ratio) else 0.0
    spread = 1.4826 * np.median(np.abs(ratio - middle)) if len(ratio) else 1.0
    return (ratio - middle) / max(float(spread), 0.1), np.full(len(ratio), np.exp(middle))


def _reasons(survey: Survey, row: int, evidence: np.ndarray, odd: float, usual: float) -> list[str]:
    """In words, the strongest first."""
    table = survey.table
    found = [(nats, name) for name, nats in NATS.items() if table.faults[row] & BIT[name]]
    src, tgt = int(table.src_length[row]), int(table.tgt_length[row])
    lengths, digits, marks = (-float(each) for each in evidence)
    if abs(odd) > ODD or lengths > 1:
        told = (
            f"lengths: {src:,} and {tgt:,} characters, where {src * usual:,.0f} would be usual for the target"
        )
        found.append((max(lengths, 0) + max(abs(odd) - ODD, 0), told))
    if digits > 0.5:
        one, other = _digits(int(table.src_digits[row])), _digits(int(table.tgt_digits[row]))
        found.append((digits, f"numbers: digits {one} in the source, {other} in the target"))
    if marks > 0.5:
        differ = int(table.src_marks[row] ^ table.tgt_marks[row])
        names = [mark for bit, mark in enumerate(MARKS) if differ >> bit & 1]
        found.append((marks, f"marks: {' and '.join(names) or 'an odd set'} on one side only"))
    found.sort(key=lambda reason: -reason[0])
    return [told for _, told in found] or ["lengths, numbers and marks: each a little unlikely"]


def _digits(mask: int) -> str:
    return "".join(str(digit) for digit in range(10) if mask >> digit & 1) or "none"

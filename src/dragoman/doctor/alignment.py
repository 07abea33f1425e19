"""Detection of alignment drift between the two sides of a corpus.

Translations agree in length, digits and marks in all languages. A likelihood ratio, learnt from the corpus itself as
real pairs against random ones, turns each agreement into evidence, in nats, that two sentences are translations of
each other. After a missing line, every source fits a neighbour of its target better. For each shift, the gains in
evidence are summed along the corpus; the drift is the stretch of the largest sum (Kadane). A likelihood ratio exceeds
e^x at random with probability e^-x (Ville's inequality), which gives the threshold. A shuffled corpus has no order
and shows no drift.
"""

import numpy as np

from dragoman.doctor.survey import DIGITS, MARKS

# Shifts of the target against the source to test.
SHIFTS = [shift for shift in range(-8, 9) if shift]
MIN_PAIRS, MIN_STRETCH, MAX_STRETCHES = 50, 8, 20  # pairs, rows and stretches of a part
# Probability of a false alarm per part if the model were exact, and a margin because it is not.
ERROR, MARGIN = 1e-3, 2.0
PRIOR = 5.0  # added to both counts of each relation, so that rare ones have little weight
# Classes of lengths, relations of digits, sets of marks.
_N_LENGTHS, _N_DIGITS, _N_MARKS = 12, 6, 16
_N_RELATIONS = _N_LENGTHS**2 + _N_DIGITS + _N_MARKS**2


def drift(table: np.ndarray) -> list[tuple[int, int, int | None]]:
    """Return the stretches (first, last, shift) of one part with alignment drift.

    In rows first .. last - 1, row i of the source fits row i + shift of the target; None means that no shift fits.
    """
    n = len(table)
    if n < MIN_PAIRS:
        return []
    src, tgt = _features(table["src"]), _features(table["tgt"])
    weights = _learn(src, tgt)
    unshifted = weights[_relations(src, tgt, 0)].sum(axis=0)
    threshold = MARGIN * np.log(n * len(SHIFTS) / ERROR)
    stretches: list[tuple[int, int, int | None]] = []
    unexamined = [(0, n)]
    while unexamined and len(stretches) < MAX_STRETCHES:
        first, last = unexamined.pop()
        # "No shift" explains any disorder, so it must win by the threshold.
        nats, *stretch = _best_stretch(-unshifted[first:last])
        best: tuple[float, list[int], int | None] = nats - threshold, stretch, None
        for shift in SHIFTS:
            gain = weights[_relations(src, tgt, shift)].sum(axis=0) - unshifted
            nats, *stretch = _best_stretch(gain[first:last])
            best = max(best, (nats, stretch, shift), key=lambda each: each[0])
        nats, (start, end), best_shift = best
        if nats >= threshold and end - start >= MIN_STRETCH:
            stretches.append((first + start, first + end, best_shift))
            unexamined += [(first, first + start), (first + end, last)]
    return sorted(stretches, key=lambda stretch: stretch[0])


def _best_stretch(gain: np.ndarray) -> tuple[float, int, int]:
    """Return the largest sum of consecutive gains, its start and end (Kadane)."""
    sums = np.concatenate([[0.0], np.cumsum(gain, dtype=np.float64)])
    end = int((sums - np.minimum.accumulate(sums)).argmax())
    start = int(sums[: end + 1].argmin())
    return float(sums[end] - sums[start]), start, end


def _features(side: np.ndarray) -> np.ndarray:
    """(3, n) numbers of one side: quantile of the length, digits, marks."""
    cuts = np.unique(np.quantile(side["length"], np.linspace(0, 1, _N_LENGTHS + 1)[1:-1]))
    classes = np.searchsorted(cuts, side["length"], "right")
    return np.stack([classes, side["flags"] & DIGITS, (side["flags"] & MARKS) >> 10]).astype(np.int16)


def _relations(src: np.ndarray, tgt: np.ndarray, shift: int) -> np.ndarray:
    """(3, n) relations of source rows to the target rows `shift` further on."""
    tgt = np.roll(tgt, -shift, axis=1)
    a, b = src[1], tgt[1]
    # No digits, equal, some in common, only in the target, only in the source, others.
    digits = np.select([(a | b) == 0, a == b, (a & b) > 0, a == 0, b == 0], range(5), 5)
    lengths, marks = src[0] * _N_LENGTHS + tgt[0], src[2] * _N_MARKS + tgt[2]
    return np.stack([lengths, _N_LENGTHS**2 + digits, _N_LENGTHS**2 + _N_DIGITS + marks])


def _learn(src: np.ndarray, tgt: np.ndarray) -> np.ndarray:
    """(_N_RELATIONS,) log likelihood ratios: real pairs against random ones."""

    def count(shift: int) -> np.ndarray:
        return np.bincount(_relations(src, tgt, shift).ravel(), minlength=_N_RELATIONS)

    n = src.shape[1]
    # Distant rows serve as random partners.
    random = sum(count(fifth * n // 5) for fifth in range(1, 5)) / 4 + PRIOR
    # The whole file may be shifted.
    counts = [count(shift) for shift in (0, *SHIFTS)]
    weights = [np.log((real + PRIOR) / random).astype(np.float32) for real in counts]
    return max(zip(counts, weights, strict=True), key=lambda pair: pair[0] @ pair[1])[1]

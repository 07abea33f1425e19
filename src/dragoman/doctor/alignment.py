"""Detection of drift between the two sides of a corpus.

A line missing in the source shifts the rows after it: source i then belongs to target i + 1. A shift is detected by the
evidence that source i and target i + shift are translations of each other, summed over a stretch of rows.

The evidence compares lengths, digits and punctuation marks, which agree in all languages. It is a log-likelihood ratio
in nats: the frequency of each relation (for example, equal digits) in the pairs of the corpus over its frequency in
random pairs. The gain of a row is its evidence with the shift minus its evidence without. The stretch with the largest
sum of gains (Kadane's algorithm) is reported if the sum exceeds a threshold. Under random pairs, the ratio exceeds e^x
with a probability of at most e^-x (Ville's inequality). A shuffled corpus has no order, so no drift is reported.
"""

import numpy as np

from dragoman.doctor.survey import DIGITS, MARKS

# Shifts of the target against the source to test.
SHIFTS = [shift for shift in range(-8, 9) if shift]
MIN_PAIRS = 50  # of a split that is examined
MIN_STRETCH, MAX_STRETCHES = 8, 20  # rows of a stretch; stretches of a split
# Probability of a false alarm per split if the model were exact, and a factor for the threshold because it is not.
ERROR, MARGIN = 1e-3, 2.0
PRIOR = 5.0  # added to both counts of each relation, so that rare ones have little weight
# Classes of lengths, relations of two sets of digits, sets of marks.
_N_LENGTHS, _N_DIGITS, _N_MARKS = 12, 6, 16
_N_RELATIONS = _N_LENGTHS**2 + _N_DIGITS + _N_MARKS**2


def drift(table: np.ndarray) -> list[tuple[int, int, int | None]]:
    """Return the stretches (first, last, shift) of one split with alignment drift.

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
        nats, start, end = _best_stretch(-unshifted[first:last])
        # None (no shift) fits any disorder, so its gain must exceed that of a shift by the threshold.
        candidates: list[tuple[float, int, int, int | None]] = [(nats - threshold, start, end, None)]
        for shift in SHIFTS:
            gain = weights[_relations(src, tgt, shift)].sum(axis=0) - unshifted
            candidates.append((*_best_stretch(gain[first:last]), shift))
        nats, start, end, best_shift = max(candidates, key=lambda candidate: candidate[0])
        if nats >= threshold and end - start >= MIN_STRETCH:
            stretches.append((first + start, first + end, best_shift))
            unexamined += [(first, first + start), (first + end, last)]
    return sorted(stretches, key=lambda stretch: stretch[0])


def _best_stretch(gain: np.ndarray) -> tuple[float, int, int]:
    """Return the largest sum of consecutive gains, with its start and end (Kadane)."""
    sums = np.concatenate([[0.0], np.cumsum(gain, dtype=np.float64)])
    end = int((sums - np.minimum.accumulate(sums)).argmax())
    start = int(sums[: end + 1].argmin())
    return float(sums[end] - sums[start]), start, end


def _features(side: np.ndarray) -> np.ndarray:
    """Return (3, n) int16: length quantile, bits of the digits, bits of the marks."""
    cuts = np.unique(np.quantile(side["length"], np.linspace(0, 1, _N_LENGTHS + 1)[1:-1]))
    classes = np.searchsorted(cuts, side["length"], "right")
    return np.stack([classes, side["flags"] & DIGITS, (side["flags"] & MARKS) >> 10]).astype(np.int16)


def _relations(src: np.ndarray, tgt: np.ndarray, shift: int) -> np.ndarray:
    """Return (3, n) relations between source row i and target row i + shift.

    They are those of lengths, digits and marks. Each is an index of the (_N_RELATIONS,) weights.
    """
    tgt = np.roll(tgt, -shift, axis=1)
    a, b = src[1], tgt[1]
    # 0 no digits, 1 equal, 2 some in common, 3 only in the target, 4 only in the source, 5 none in common.
    digits = np.select([(a | b) == 0, a == b, (a & b) > 0, a == 0, b == 0], range(5), 5)
    lengths = src[0] * _N_LENGTHS + tgt[0]
    marks = src[2] * _N_MARKS + tgt[2]
    return np.stack([lengths, _N_LENGTHS**2 + digits, _N_LENGTHS**2 + _N_DIGITS + marks])


def _learn(src: np.ndarray, tgt: np.ndarray) -> np.ndarray:
    """Return (_N_RELATIONS,) log likelihood ratios in nats, real to random pairs."""

    def count(shift: int) -> np.ndarray:
        return np.bincount(_relations(src, tgt, shift).ravel(), minlength=_N_RELATIONS)

    n = src.shape[1]
    # Distant rows serve as random partners.
    random_counts = sum(count(fifth * n // 5) for fifth in range(1, 5)) / 4
    results = []
    # The whole file may be shifted, so the shift with the most evidence gives the real pairs.
    for shift in (0, *SHIFTS):
        counts = count(shift)
        weights = np.log((counts + PRIOR) / (random_counts + PRIOR)).astype(np.float32)
        results.append((counts @ weights, weights))
    return max(results, key=lambda result: result[0])[1]

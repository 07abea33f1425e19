"""Do the two sides of a corpus belong together, line by line, and from which line on do they not?

Knows: what translations have in common whatever the languages are: their lengths, their digits, their question marks,
exclamation marks, quotation marks and brackets. How much each agreement is worth is learnt from the corpus itself,
by comparing its pairs with pairs put together at random: the logarithm of how much commoner a combination is among
real pairs. Their sum is the evidence, in nats, that two sentences are translations of each other.

Where a file lost a line, every later line is a better partner for a neighbour of its own. For each shift the
evidence gained by it is added up along the corpus, and the stretch that gains most (Kadane's sum) is where the drift
lies. A likelihood ratio exceeds e^x by chance with probability e^-x (Ville's inequality), which gives the threshold.
Refuses to know: words, files. A corpus whose rows were shuffled has no positions to drift along and shows none.
"""

from typing import NamedTuple

import numpy as np

from dragoman.doctor.survey import MARKS, Table

SHIFTS = 8  # lines by which the sides may have slipped, to either hand
FURTHER = 300  # sought where no smaller shift explains a stretch
FEWEST = 50  # pairs from which nothing can be learnt
LEAST = 8  # lines of a stretch that is told
CHANCE, MARGIN = 1e-3, 2.0  # of a false alarm per part, were the model right; and for its not being so
BINS = 12
NOTHING_LEARNT = 5.0  # pairs of each combination added to both counts: rare ones prove little


class Stretch(NamedTuple):
    """Rows first .. last - 1 of a part whose sides do not go together as they stand."""

    first: int
    last: int
    shift: (
        int | None
    )  # row i of the source goes with row i + shift of the target; None: with none that was tried
    evidence: float  # nats


class Evidence:
    """What the agreements of n pairs are worth, learnt from these pairs."""

    def __init__(self, table: Table) -> None:
        self._src = _Side(table.src_length, table.src_digits, table.src_marks)
        self._tgt = _Side(table.tgt_length, table.tgt_digits, table.tgt_marks)
        self.n = len(table.line)
        self._weights = self._learn()  # one table for each of lengths, digits, marks

    def of(self, shift: int = 0) -> np.ndarray:
        """(3, n) float32: evidence by lengths, digits and marks that source row i and target row i + shift belong
        together; 0 where there is no such row."""
        found = np.zeros((3, self.n), np.float32)
        src, tgt = _overlap(self.n, shift)
        for row, (weights, relation) in enumerate(zip(self._weights, self._relations(src, tgt), strict=True)):
            found[row, src] = weights[relation]
        return found

    def over(self, first: int, last: int, shift: int) -> float:
        """The evidence for `shift` of the rows first .. last - 1, in all."""
        rows = np.arange(max(first, -shift), max(first, -shift, min(last, self.n - shift)))
        relations = self._relations(rows, rows + shift)
        return sum(float(w[r].sum()) for w, r in zip(self._weights, relations, strict=True))

    def _relations(self, src: slice | np.ndarray, tgt: slice | np.ndarray) -> list[np.ndarray]:
        """Three small numbers for each pair of rows: how their lengths, digits and marks compare."""
        one, other = self._src, self._tgt
        a, b = one.digits[src], other.digits[tgt]
        shared = np.where(a == b, 1, np.where(a & b, 2, 3))  # the same ones, some, none
        digits = np.where(a > 0, np.where(b > 0, shared, 4), np.where(b > 0, 5, 0))
        return [
            one.bins[src] * BINS + other.bins[tgt],
            digits,
            one.marks[src] * 2 ** len(MARKS) + other.marks[tgt],
        ]

    def _learn(self) -> list[np.ndarray]:
        sizes = (BINS * BINS, 6, 4 ** len(MARKS))
        if self.n < FEWEST:
            return [np.zeros(size, np.float32) for size in sizes]
        at_random = [np.zeros(size) for size in sizes]
        rows = np.arange(self.n)
        for places in range(1, 5):  # far from where they stand
            for counts, relation in zip(
                at_random, self._relations(rows, (rows + places * self.n // 5) % self.n), strict=True
            ):
                counts += np.bincount(relation, minlength=len(counts)) / 4
        best, most = [np.zeros(size) for size in sizes], -np.inf
        for shift in sorted(range(-SHIFTS, SHIFTS + 1), key=abs):
            if self.n - abs(shift) < FEWEST // 2:
                continue
            src, tgt = _overlap(self.n, shift)
            seen = [
                np.bincount(relation, minlength=size) * (self.n / (self.n - abs(shift)))
                for relation, size in zip(self._relations(src, tgt), sizes, strict=True)
            ]
            weights = [
                np.log((real + NOTHING_LEARNT) / (random + NOTHING_LEARNT))
                for real, random in zip(seen, at_random, strict=True)
            ]
            told = sum(float((real * weight).sum()) for real, weight in zip(seen, weights, strict=True))
            if told > most:
                best, most = weights, told
        return [weights.astype(np.float32) for weights in best]


class _Side:
    def __init__(self, lengths: np.ndarray, digits: np.ndarray, marks: np.ndarray) -> None:
        inner = np.linspace(0, 1, BINS + 1)[1:-1]
        cuts = np.unique(np.quantile(lengths, inner)) if len(lengths) else np.empty(0)
        self.bins = np.searchsorted(cuts, lengths, "right").astype(np.int32)
        self.digits, self.marks = digits.astype(np.int32), marks.astype(np.int32)


def _overlap(n: int, shift: int) -> tuple[slice, slice]:
    """The source rows that have a target row `shift` further on, and those."""
    return slice(max(0, -shift), max(0, min(n, n - shift))), slice(max(0, shift), max(0, min(n, n + shift)))


def drift(evidence: Evidence) -> list[Stretch]:
    """The stretches where the sides have slipped against each other, in their order; none in a sound corpus."""
    n = evidence.n
    if n < FEWEST:
        return []
    straight = evidence.of().sum(axis=0)
    gains = {shift: evidence.of(shift).sum(axis=0) - straight for shift in _shifts(n)}
    enough = MARGIN * np.log(n * (len(gains) + 1) / CHANCE)
    found: list[Stretch] = []
    left = [(0, n)]
    while left and len(found) < 20:
        first, last = left.pop()
        if last - first < LEAST:
            continue
        best = max((_stretch(gain, first, last, shift) for shift, gain in gains.items()), key=_evidence)
        none = _stretch(-straight, first, last, None)
        if none.evidence > best.evidence + enough:
            best = none
        if best.evidence < enough or best.last - best.first < LEAST:
            continue
        found.append(_further(evidence, best, enough) if best.shift is None else best)
        left += [(first, best.first), (best.last, last)]
    return sorted(found)


def _shifts(n: int) -> list[int]:
    return [shift for shift in range(-SHIFTS, SHIFTS + 1) if shift and n - abs(shift) >= FEWEST // 2]


def _evidence(stretch: Stretch) -> float:
    return stretch.evidence


def _stretch(gain: np.ndarray, first: int, last: int, shift: int | None) -> Stretch:
    """The part of first .. last - 1 with the largest sum of `gain`."""
    sums = np.concatenate([[0.0], np.cumsum(gain[first:last], dtype=np.float64)])
    lowest = np.minimum.accumulate(sums)
    end = int((sums - lowest).argmax())
    begin = int(sums[: end + 1].argmin())
    return Stretch(first + begin, first + end, shift, float(sums[end] - sums[begin]))


def _further(evidence: Evidence, stretch: Stretch, enough: float) -> Stretch:
    """The same stretch with the larger shift that explains it, if one does."""
    last = min(stretch.last, stretch.first + 5_000)
    shifts = [*range(-FURTHER, -SHIFTS), *range(SHIFTS + 1, FURTHER + 1)]
    best, shift = max((evidence.over(stretch.first, last, shift), shift) for shift in shifts)
    return stretch._replace(shift=shift) if best > enough else stretch

"""Faults of a corpus, their rows and treatment, and the most suspicious pairs."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dragoman.config import DataConfig
from dragoman.data.cleaning import first_occurrences, leaks, pair_hashes
from dragoman.data.readers import locate
from dragoman.data.text import MAX_CHARS, lines
from dragoman.doctor.survey import BIT, DIGITS, MARKS, Survey

MANY = 0.2  # share of faulty pairs that indicates a wrong file, column or setting
MIXED = 0.01  # smallest share of the rarer Chinese script to report
N_SUSPECTS, MIN_POINTS = 20, 2
SHIFTS = [shift for shift in range(-8, 9) if shift]  # of the target against the source, to test
MIN_PAIRS = 50  # of a split that is examined for alignment drift
MIN_STRETCH, MAX_STRETCHES = 8, 20  # rows of a stretch; stretches of a split
ERROR = 1e-3  # probability of a false alarm in a split, if its rows were independent


class Kind(NamedTuple):
    """A kind of fault, its treatment, and the option of train.py for it, if any."""

    severity: str  # act: needs attention, cleaned: cleaning handles it
    points: str  # suspicion score
    name: str
    message: str
    option: str = ""


_KINDS = """
act | 8 | swapped languages | The source is written like {tgt}, the target like {src}. Begin a TSV with {tgt}<TAB>{src}.
act | 7 | mojibake | UTF-8 was read as Windows-1252 or GBK (Ã©, â€™, 浣犲ソ). Create the file again, or delete the rows.
act | 7 | invalid UTF-8 | Cleaning drops the pair. If the file is GB18030 (or CP1252): iconv -f GB18030 -t UTF-8.
act | 2 | markup | The model learns to write markup such as <i> or <pad>. Remove it unless intended.
act | 0 | leak of a pair | The pair is also in validation or test. Cleaning drops exact copies. Delete the others.
act | 0 | leak of a sentence | One side is also in validation or test. Drop the pair. | data.leak=sentence
act | 0 | traditional characters | Most pairs are simplified. Convert this one, or train on both. | data.script=hans
act | 0 | simplified characters | Most pairs are traditional. Convert this one, or train on both. | data.script=hant
cleaned | 6 | replacement character | U+FFFD replaces a lost character. Cleaning drops the pair.
cleaned | 6 | too long | A side is too long for a sentence. Cleaning drops the pair.
cleaned | 5 | source equals target | Cleaning drops exact copies from train unless data.drop_copies=false.
cleaned | 5 | wrong script | A side is not in the script of {src} or {tgt}. Cleaning drops the clear cases.
cleaned | 4 | empty side | Cleaning drops the pair.
cleaned | 0 | invisible character | Cleaning removes control characters etc. If most are NUL, the file is UTF-16.
cleaned | 0 | duplicate | The pair equals an earlier one. Cleaning drops exact copies from train.
"""
KINDS = [Kind(*line.split(" | ")) for line in _KINDS.strip().split("\n")]
Masks = dict[str, np.ndarray]


def faults(survey: Survey) -> Masks:
    """Return a mask (n,) for each kind, True for pairs with the fault."""
    src, tgt = survey.table["src"], survey.table["tgt"]
    flags = src["flags"] | tgt["flags"]
    masks: Masks = {kind.name: flags & BIT[kind.name] > 0 for kind in KINDS if kind.name in BIT}
    masks["swapped languages"] = src["other"] & tgt["other"] & ~src["own"] & ~tgt["own"]
    masks["wrong script"] = ~(src["own"] & tgt["own"]) & ~masks["swapped languages"]
    masks["empty side"] = src["flags"] & tgt["flags"] & BIT["visible"] == 0
    masks["too long"] = np.maximum(src["length"], tgt["length"]) > MAX_CHARS
    masks["source equals target"] = (src["folded"] == tgt["folded"]) & (src["folded"] != 0)
    hans, hant = (flags & BIT[script] > 0 for script in ("simplified", "traditional"))
    n_hans, n_hant = hans.sum(), hant.sum()
    masks["traditional characters"] = hant & (MIXED * n_hans < n_hant <= n_hans)
    masks["simplified characters"] = hans & (MIXED * n_hant < n_hans < n_hant)
    # Duplicates and leaks of train, by letters and digits only.
    sentences = np.stack([src["folded"], tgt["folded"]]).view(np.uint64)
    held_out = np.array([part["split"] != "train" for part in survey.parts])[survey.table["part"]]
    train = ~held_out & sentences.all(axis=0)
    masks["duplicate"] = train.copy()
    masks["duplicate"][train] = ~first_occurrences(pair_hashes(sentences[:, train]))
    leak, shared = (train & leaks(sentences, sentences[:, held_out], sentence=each) for each in (False, True))
    return masks | {"leak of a pair": leak, "leak of a sentence": shared & ~leak}


def chinese_scripts(survey: Survey) -> dict[str, int]:
    """Return the numbers of pairs by Chinese script."""
    flags = survey.table["src"]["flags"] | survey.table["tgt"]["flags"]
    hans, hant = (flags & BIT[script] > 0 for script in ("simplified", "traditional"))
    counts = np.bincount(hans + 2 * hant, minlength=4).tolist()
    return dict(zip(("the same in both scripts", "simplified", "traditional", "mixed"), counts, strict=True))


def find(survey: Survey, masks: Masks, config: DataConfig) -> Iterator[tuple[Kind, np.ndarray]]:
    """Yield all findings with rows; one above the share MANY needs attention."""
    for corpus in config.corpora:
        paths = [locate(path, config.root) for path in (corpus.src_path, corpus.tgt_path) if path]
        counts = {path: sum(1 for _ in lines(path)) for path in paths}
        if len(set(counts.values())) > 1:
            message = " and ".join(f"{path} has {n:,} lines" for path, n in counts.items()) + ". They must be equal."
            yield Kind("act", "0", "unequal line counts", message), np.array([len(survey.table) - 1])
    for number, part in enumerate(survey.parts):
        rows = np.flatnonzero(survey.table["part"] == number)
        for first, last, shift in drift(survey.table[rows]) if len(rows) >= MIN_PAIRS else ():
            message = f"From row {first + 1:,} to {last:,} of {part['split']} the sides "
            if shift is None:
                message += "do not match, and no small shift corrects them."
            else:
                side, other = ("target", "source") if shift > 0 else ("source", "target")
                n = f"{abs(shift)} row{'s' if abs(shift) > 1 else ''}"
                message += f"are shifted: the {side} has {n} too many, or the {other} lacks {n}."
            yield Kind("act", "0", "alignment drift", message), rows[first:last]
    for kind in KINDS:
        rows = np.flatnonzero(masks[kind.name])
        severity = "act" if len(rows) > MANY * len(survey.table) else kind.severity
        if len(rows):
            yield kind._replace(severity=severity, message=kind.message.format(src=config.src, tgt=config.tgt)), rows


def suspects(survey: Survey, masks: Masks) -> dict[int, dict[str, Any]]:
    """Return the most suspicious rows with points and reasons, the worst first."""
    src, tgt = survey.table["src"], survey.table["tgt"]
    rules = {kind.name: masks[kind.name] * np.int8(int(kind.points)) for kind in KINDS}
    ratio = np.log((tgt["length"] + 1) / (src["length"] + 1))
    deviation = np.abs(ratio - np.median(ratio))
    spread = max(1.4826 * float(np.median(deviation)), 0.1)
    rules["unusual lengths"] = np.clip(deviation / spread - 3, 0, 8).astype(np.int8)
    a, b = src["flags"] & DIGITS, tgt["flags"] & DIGITS
    rules["different numbers"] = ((a > 0) & (b > 0) & (a & b == 0)) * np.int8(3)
    rules["number on one side"] = ((a > 0) ^ (b > 0)) * np.int8(1)
    rules["question mark on one side"] = ((src["flags"] ^ tgt["flags"]) & BIT["question mark"] > 0) * np.int8(2)
    total = sum(rules.values(), np.zeros(len(src), np.int16))
    order = np.argsort(-total, kind="stable")[:N_SUSPECTS]
    return {
        row: {"points": int(total[row]), "reasons": [name for name, points in rules.items() if points[row]]}
        for row in order[total[order] >= MIN_POINTS].tolist()
    }


def drift(table: np.ndarray) -> list[tuple[int, int, int | None]]:
    """Return the stretches (first, last, shift) of one split with alignment drift.

    In rows first .. last - 1, row i of the source fits row i + shift of the target; None means that no shift fits. A
    line missing in the source, for example, shifts the rows after it by 1.

    The gain of a row is its misfit without the shift minus its misfit with it. The stretch with the largest sum of
    gains (Kadane's algorithm) is reported if the sum exceeds a threshold. Aligned rows have gains of mean -m and
    variance v, so the sum from some row exceeds x with a probability of about e^(-2 m x / v). In a shuffled corpus,
    misaligned pairs are scattered, so no stretch is found.
    """
    misfits = {shift: _misfits(table["src"], table["tgt"], shift) for shift in (0, *SHIFTS)}
    # The whole file may be shifted. Other rows nearby, of the same kind of text, serve as random partners.
    aligned = min(misfits.values(), key=np.sum)
    chance = (sum(misfits.values()) - aligned) / len(SHIFTS)
    if (loss := float(np.mean(chance - aligned))) < 0.01:
        return []
    variance, level = max(np.var(each - aligned) for each in misfits.values()), chance - loss / 2
    threshold = np.log(len(table) * len(SHIFTS) / ERROR) * variance / (2 * loss)
    stretches, unexamined = list[tuple[int, int, int | None]](), [(0, len(table))]
    while unexamined and len(stretches) < MAX_STRETCHES:
        first, last = unexamined.pop()
        total, start, end = _best_stretch((misfits[0] - level)[first:last])
        # No shift (None) explains these rows, so they must fit as badly as random pairs, and gain twice the threshold.
        gain = total - threshold if total > 0.4 * loss * (end - start) else 0.0
        candidates: list[tuple[float, int, int, int | None]] = [(gain, start, end, None)]
        for shift in SHIFTS:
            total, start, end = _best_stretch(misfits[0][first:last] - misfits[shift][first:last])
            if end - start >= MIN_STRETCH and (misfits[shift] - level)[first + start : first + end].mean() < 0:
                candidates.append((total, start, end, shift))
        total, start, end, best_shift = max(candidates, key=lambda candidate: candidate[0])
        if total >= threshold and end - start >= MIN_STRETCH:
            stretches.append((first + start, first + end, best_shift))
            unexamined += [(first, first + start), (first + end, last)]
    return sorted(stretches, key=lambda stretch: stretch[0])


def _best_stretch(gain: np.ndarray) -> tuple[float, int, int]:
    """Return the largest sum of consecutive gains, with its start and end (Kadane)."""
    sums = np.concatenate([[0.0], np.cumsum(gain, dtype=np.float64)])
    end = int((sums - np.minimum.accumulate(sums)).argmax())
    start = int(sums[: end + 1].argmin())
    return float(sums[end] - sums[start]), start, end


def _misfits(src: np.ndarray, tgt: np.ndarray, shift: int) -> np.ndarray:
    """Return (n,) the mismatch of source row i and target row i + shift.

    Lengths count by the logarithm of their ratio, different digits and different marks by a half each.
    """
    tgt = np.roll(tgt, -shift)
    ratio = np.log((tgt["length"] + 1.0) / (src["length"] + 1.0))
    others = [(src["flags"] ^ tgt["flags"]) & kind > 0 for kind in (DIGITS, MARKS)]
    return (np.abs(ratio - np.median(ratio)).clip(max=1.5) + np.sum(others, axis=0) / 2).astype(np.float32)

"""Faults of a corpus, their rows and treatment, and the most suspicious pairs."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dragoman.config import DataConfig
from dragoman.data.cleaning import first_occurrences, leaks, pair_hashes
from dragoman.data.text import MAX_CHARS
from dragoman.doctor.alignment import drift
from dragoman.doctor.survey import BIT, DIGITS, Survey

MANY = 0.2  # share of faulty pairs that indicates a wrong file, column or setting
MIXED = 0.01  # smallest share of the rarer Chinese script to report
N_SUSPECTS, MIN_POINTS = 20, 2


class Kind(NamedTuple):
    """A kind of fault, its treatment, and the option of train.py for it, if any."""

    severity: str  # act: needs attention, cleaned: cleaning handles it
    points: str  # suspicion score
    name: str
    message: str
    option: str = ""


_KINDS = """
act | 8 | swapped languages | The source is written like {tgt}, the target like {src}. Swap src and tgt.
act | 7 | mojibake | UTF-8 was read as Windows-1252 or GBK (Ã©, â€™, 浣犲ソ). Create the file again, or delete the rows.
act | 7 | invalid UTF-8 | The bytes become U+FFFD. If the file is GB18030: iconv -f GB18030 -t UTF-8.
act | 6 | replacement character | U+FFFD replaces a lost character. Create the file again, or delete the rows.
act | 2 | markup | The model learns to write markup such as <i> or <pad>. Remove it unless intended.
act | 0 | leak of a pair | The pair is also in validation or test. Cleaning drops exact copies. Delete the others.
act | 0 | leak of a sentence | One side is also in validation or test. Drop the pair. | data.leak=sentence
act | 0 | traditional characters | Most pairs have simplified ones. Convert these, or train on both. | data.script=hans
act | 0 | simplified characters | Most pairs have traditional ones. Convert these, or train on both. | data.script=hant
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
    return masks | _repetitions(survey)


def chinese_scripts(survey: Survey) -> dict[str, int]:
    """Return the numbers of pairs by Chinese script."""
    flags = survey.table["src"]["flags"] | survey.table["tgt"]["flags"]
    hans, hant = (flags & BIT[script] > 0 for script in ("simplified", "traditional"))
    masks = {"simplified": hans & ~hant, "traditional": hant & ~hans, "mixed": hans & hant}
    masks["the same in both"] = ~(hans | hant)
    return {script: int(mask.sum()) for script, mask in masks.items()}


def _repetitions(survey: Survey) -> Masks:
    """Return duplicates and leaks in train, comparing only letters and digits."""
    sentences = np.stack([survey.table[side]["folded"] for side in ("src", "tgt")]).view(np.uint64)
    held_out = np.array([part["split"] != "train" for part in survey.parts])[survey.table["part"]]
    train = ~held_out & sentences.all(axis=0)
    duplicate = train.copy()
    duplicate[train] = ~first_occurrences(pair_hashes(sentences[:, train]))
    leak, shared = (train & leaks(sentences, sentences[:, held_out], sentence=each) for each in (False, True))
    return {"duplicate": duplicate, "leak of a pair": leak, "leak of a sentence": shared & ~leak}


def find(survey: Survey, masks: Masks, config: DataConfig) -> list[tuple[Kind, np.ndarray]]:
    """Return all findings with rows; a fault of MANY pairs always needs attention."""
    findings = list(_drifts(survey))
    for kind in KINDS:
        rows = np.flatnonzero(masks[kind.name])
        severity = "act" if len(rows) > MANY * len(survey.table) else kind.severity
        message = kind.message.format(src=config.src, tgt=config.tgt)
        findings.append((kind._replace(severity=severity, message=message), rows))
    return [(kind, rows) for kind, rows in findings if len(rows)]


def _drifts(survey: Survey) -> Iterator[tuple[Kind, np.ndarray]]:
    for number, part in enumerate(survey.parts):
        rows = np.flatnonzero(survey.table["part"] == number)
        for first, last, shift in drift(survey.table[rows]):
            message = f"From row {first + 1:,} to {last:,} of {part['split']} the sides "
            if shift is None:
                message += "do not match, and no small shift corrects them."
            else:
                side, other = ("target", "source") if shift > 0 else ("source", "target")
                n = f"{abs(shift)} row{'s' if abs(shift) > 1 else ''}"
                message += f"are shifted: the {side} has {n} too many, or the {other} lacks {n}."
            yield Kind("act", "0", "alignment drift", message), rows[first:last]


def suspects(survey: Survey, masks: Masks) -> dict[int, dict[str, Any]]:
    """Return the most suspicious rows with points and reasons, the worst first."""
    src, tgt = survey.table["src"], survey.table["tgt"]
    rules = {kind.name: masks[kind.name] * np.int8(int(kind.points)) for kind in KINDS}
    ratio = np.log((tgt["length"] + 1) / (src["length"] + 1))
    deviation = np.abs(ratio - np.median(ratio))
    spread = max(1.4826 * float(np.median(deviation)), 0.1)
    rules["unusual lengths"] = np.clip(deviation / spread - 3, 0, 8).astype(np.int8)
    a, b = src["flags"] & DIGITS, tgt["flags"] & DIGITS
    rules["other numbers"] = ((a > 0) & (b > 0) & (a & b == 0)) * np.int8(3)
    rules["number on one side"] = ((a > 0) ^ (b > 0)) * np.int8(1)
    rules["question mark on one side"] = ((src["flags"] ^ tgt["flags"]) & BIT["question mark"] > 0) * np.int8(2)
    total = sum(rules.values(), np.zeros(len(src), np.int16))
    order = np.argsort(-total, kind="stable")[:N_SUSPECTS]
    return {
        row: {"points": int(total[row]), "reasons": [name for name, points in rules.items() if points[row]]}
        for row in order[total[order] >= MIN_POINTS].tolist()
    }

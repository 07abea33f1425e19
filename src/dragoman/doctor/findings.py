"""From the numbers of a survey to findings: what is wrong, how often, on which lines, and what becomes of it.

Knows: which findings ask for a hand ("act"), which the cleaning before training deals with by itself ("mended"),
and which are only good to know ("note"). Refuses to know: texts, files, how a report looks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dragoman.data.cleaning import WITHOUT_HAN
from dragoman.data.corpus import MAX_CHARS
from dragoman.data.splits import Hashes, first_occurrences
from dragoman.doctor.alignment import Evidence, Stretch, drift
from dragoman.doctor.faults import (
    BIT,
    COPY,
    EMOJI,
    EMPTY,
    FAULTS,
    HANS,
    HANT,
    HTML,
    MOJIBAKE,
    RARE,
    REPLACED,
    SCRIPT,
    SWAPPED,
    TAG,
    TOKEN,
    TOO_LONG,
    WIDE,
)
from dragoman.doctor.leaks import MOST as INDEXED
from dragoman.doctor.survey import Part, Survey
from dragoman.languages import is_chinese, primary

ACT, MENDED, NOTE = "act", "mended", "note"
DRIFT, DUPLICATE, TARGETS, SOURCES, NUMBERS, MIX = (
    "alignment drift", "exact duplicate", "source with other targets", "target with other sources",
    "numbers that disagree", "simplified and traditional mixed",
)  # fmt: skip
MANY, NONE, UNSOUGHT = (
    "many pairs dropped",
    "nothing left to train on",
    "not sought for leaks of nearly the same pair",
)
PAIR_LEAK, SENTENCE_LEAK, NEAR_LEAK = "leak of a pair", "leak of a sentence", "leak of nearly the same pair"
A_LOT = 0.2  # share of a part that cleaning drops, from which it is no longer a matter of single pairs
MINORITY = 0.01  # share of the script that is not the corpus's own, from which both are told

DROPPED = (SWAPPED, SCRIPT, EMPTY, TOO_LONG, COPY)  # faults for which cleaning drops a pair

# Fault -> what becomes of it, and what to know about it. Those that depend on more than themselves are told below.
_TOLD = {
    EMPTY: (MENDED, "One side is empty; the pair is dropped."),
    TOO_LONG: (MENDED, f"A side has more than {MAX_CHARS:,} characters; the pair is dropped."),
    COPY: (MENDED, "The target is the source; the pair is dropped from train unless data.drop_copies=false."),
    REPLACED: (ACT, "Holds U+FFFD: a character was lost before. Make the file anew, or delete these lines."),
    MOJIBAKE: (
        ACT,
        "UTF-8 once read as Windows-1252 or GBK (Ã©, â€™, 浣犲ソ). Make the file anew, or delete these.",
    ),
    HTML: (MENDED, "Entities such as &amp; are replaced by what they stand for."),
    TAG: (ACT, "Markup such as <i>: the model would learn to write it. Take it out where it is not meant."),
    TOKEN: (
        NOTE,
        "Tokens such as <pad>. They are text here and do no harm, but hint at a corpus written by a program.",
    ),
    WIDE: (NOTE, "Full-width letters or digits (Ａ１). They are kept; the model learns them beside A1."),
    EMOJI: (NOTE, "Emoji. They are kept, and spelt in bytes where they are rare."),
    RARE: (NOTE, "Hanzi beyond U+20000. They are kept, and spelt in bytes where they are rare."),
    "invalid UTF-8": (
        ACT,
        "Bytes that are not UTF-8 become U+FFFD. GB18030? iconv -f GB18030 -t UTF-8 converts it.",
    ),
    "byte order mark": (MENDED, "U+FEFF, left by an editor; removed."),
    "NUL": (MENDED, "The character U+0000; removed. Half of all characters? Then the file is UTF-16."),
    "carriage return": (MENDED, "Line ends of Windows or of an old Mac; they become spaces."),
    "line separator": (
        MENDED,
        "U+2028, U+0085 and the like become spaces; some tools take them for line ends.",
    ),
    "control character": (MENDED, "Control, zero-width or direction characters; removed."),
    "mark of sentencepiece": (MENDED, "U+2581, by which sentencepiece writes a space, becomes _."),
}


@dataclass(kw_only=True)
class Finding:
    """One thing that was found."""

    kind: str
    weight: str  # act, mended, note
    told: str  # in a sentence or two, the number of pairs aside
    rows: np.ndarray  # (n,) of the survey's table, increasing
    settings: list[tuple[str, str]] = field(default_factory=list)  # words for train.py, and why


def find(survey: Survey, src: str, tgt: str) -> list[Finding]:
    """All findings, those that ask for a hand first."""
    found = [
        *_drifts(survey),
        *_faults(survey, src, tgt),
        *_scripts(survey),
        *_repetitions(survey),
        *_leaks(survey),
        *_numbers(survey),
        *_unsought(survey),
    ]
    found += _losses(survey, found)
    found = [finding for finding in found if len(finding.rows)]
    return sorted(found, key=lambda finding: ((ACT, MENDED, NOTE).index(finding.weight), -len(finding.rows)))


def training(survey: Survey) -> np.ndarray:
    """(n,) bool, the rows of training splits."""
    rows = np.zeros(len(survey.table.line), bool)
    for part in survey.parts:
        if part.split == "train":
            rows[part.first : part.last] = True
    return rows


def _drifts(survey: Survey) -> Iterator[Finding]:
    for part in survey.parts:
        table = survey.table.at(slice(part.first, part.last))
        for stretch in drift(Evidence(table)):
            rows = np.arange(part.first + stretch.first, part.first + stretch.last)
            yield Finding(kind=DRIFT, weight=ACT, told=_slipped(part, stretch, table.line), rows=rows)


def _slipped(part: Part, stretch: Stretch, line: np.ndarray) -> str:
    first, last = line[stretch.first], line[stretch.last - 1]
    where = f"From {part.unit} {first:,} to {last:,} of {part.split} the two sides do not go together"
    if stretch.shift is None:
        return f"{where}, nor do they with any of their neighbours: look at them there."
    n = abs(stretch.shift)
    side, other = ("target", "source") if stretch.shift > 0 else ("source", "target")
    return (
        f"{where}: the {other} goes with the {side} {n} {part.unit}{'s' if n > 1 else ''} further on. Near {part.unit} "
        f"{first:,} the {side} has {n} too many, or the {other} lacks {n}."
    )


def _faults(survey: Survey, src: str, tgt: str) -> Iterator[Finding]:
    bits, judged = survey.table.faults, is_chinese(src) or is_chinese(tgt)
    dropped = (
        "dropped from train" if judged and {primary(src), primary(tgt)} & WITHOUT_HAN else "not recognised"
    )
    for name in FAULTS:
        rows = np.flatnonzero(bits & BIT[name])
        if name == SWAPPED:
            yield _swapped(survey, rows, src, tgt, dropped)
        elif name == SCRIPT:
            told = f"A side is not written as {src} and {tgt} are; mostly {dropped} by cleaning."
            yield Finding(kind=name, weight=MENDED if "train" in dropped else ACT, told=told, rows=rows)
        elif name not in (HANS, HANT):
            weight, told = _TOLD[name]
            yield Finding(kind=name, weight=weight, told=told, rows=rows)


def _swapped(survey: Survey, rows: np.ndarray, src: str, tgt: str, dropped: str) -> Finding:
    most = len(rows) * 2 > len(survey.table.line)
    if not most:
        told = f"The source is written as {tgt} is and the target as {src} is; {dropped} by cleaning. Swap these lines."
        return Finding(kind=SWAPPED, weight=ACT, told=told, rows=rows)
    told = (
        f"Most pairs: the corpus is {tgt}-{src}, not {src}-{tgt}. Swap src_path and tgt_path, or src_column and "
        "tgt_column; for a file of two columns without names swap data.src and data.tgt."
    )
    return Finding(kind=SWAPPED, weight=ACT, told=told, rows=rows)


def _scripts(survey: Survey) -> Iterator[Finding]:
    bits = survey.table.faults
    hans, hant = (bits & BIT[HANS]) > 0, (bits & BIT[HANT]) > 0
    told = int((hans | hant).sum())
    fewer, keep = (hant, "hans") if hans.sum() >= hant.sum() else (hans, "hant")
    if told and fewer.sum() / told >= MINORITY:
        yield Finding(
            kind=MIX,
            weight=ACT,
            told=f"Of {told:,} pairs whose script can be told {int(hans.sum()):,} have simplified and "
            f"{int(hant.sum()):,} traditional hanzi: every word comes in two spellings.",
            rows=np.flatnonzero(fewer),
            settings=[(f"data.script={keep}", "convert the fewer ones, so that every word has one spelling")],
        )


def _repetitions(survey: Survey) -> Iterator[Finding]:
    rows = np.flatnonzero(training(survey) & survey.table.kept)
    own = Hashes(survey.table.src_hash[rows], survey.table.tgt_hash[rows])
    first = first_occurrences(own.pairs())
    yield Finding(
        kind=DUPLICATE,
        weight=MENDED,
        told="The same pair once more; all but the first are dropped from train.",
        rows=rows[~first],
    )
    rows, own = rows[first], own.at(first)
    for kind, side, told in (
        (
            TARGETS,
            own.src,
            "A source that also stands with another target: free translation, or a wrong one.",
        ),
        (SOURCES, own.tgt, "A target that also stands with another source."),
    ):
        _, inverse, counts = np.unique(side, return_inverse=True, return_counts=True)
        yield Finding(kind=kind, weight=NOTE, told=told, rows=rows[counts[inverse] > 1])


def _leaks(survey: Survey) -> Iterator[Finding]:
    rows = np.flatnonzero(training(survey) & survey.table.kept)
    own = Hashes(survey.table.src_hash[rows], survey.table.tgt_hash[rows])
    pair, sentence = own.leaks(survey.held, sentence=False), own.leaks(survey.held, sentence=True)
    yield Finding(
        kind=PAIR_LEAK,
        weight=MENDED,
        told="Training pairs that validation or test has too; they are dropped from train.",
        rows=rows[pair],
    )
    yield Finding(
        kind=SENTENCE_LEAK,
        weight=ACT,
        told="Training pairs one side of which is a sentence of validation or test: scores will flatter the model.",
        rows=rows[sentence & ~pair],
        settings=[
            ("data.leak=sentence", "drop training pairs that share a sentence with validation or test")
        ],
    )
    near = np.setdiff1d(np.array(list(survey.near), np.int64), rows[pair])
    yield Finding(
        kind=NEAR_LEAK,
        weight=ACT,
        told="Training pairs both sides of which are nearly those of one pair of validation or test. No setting drops "
        "them: delete these lines if the score is to mean something.",
        rows=near,
    )


def _numbers(survey: Survey) -> Iterator[Finding]:
    src, tgt = survey.table.src_digits, survey.table.tgt_digits
    rows = np.flatnonzero((src > 0) & (tgt > 0) & ((src & tgt) == 0))
    told = "Both sides have numbers, and no digit is in both: often a wrong pair, sometimes inches and centimetres."
    yield Finding(kind=NUMBERS, weight=NOTE, told=told, rows=rows)


def _unsought(survey: Survey) -> Iterator[Finding]:
    told = (
        f"Training pairs that are nearly these were not sought: of validation and test only the first {INDEXED:,} "
        "sentences are held against train in this way. Exact leaks were sought in all."
    )
    yield Finding(kind=UNSOUGHT, weight=NOTE, told=told, rows=survey.unsought)


def _losses(survey: Survey, found: list[Finding]) -> Iterator[Finding]:
    """What makes a corpus useless as it stands, though each of its pairs is dealt with by cleaning."""
    bits, kept = survey.table.faults, survey.table.kept
    for part in survey.parts:
        rows = part.first + np.flatnonzero(~kept[part.first : part.last])
        if len(rows) > A_LOT * (part.last - part.first):
            counts = {name: int(((bits[rows] & BIT[name]) > 0).sum()) for name in DROPPED}
            why = ", ".join(f"{name} {n:,}" for name, n in counts.items() if n) or "no text in them"
            told = (
                f"Cleaning drops {len(rows):,} of the {part.last - part.first:,} pairs of {part.split}: {why}. Are "
                "these the right files and columns, and data.src and data.tgt the right way round?"
            )
            yield Finding(kind=MANY, weight=ACT, told=told, rows=rows)
    rows = np.flatnonzero(training(survey))
    gone = np.concatenate([f.rows for f in found if f.kind in (DUPLICATE, PAIR_LEAK)] + [rows[~kept[rows]]])
    if not len(np.setdiff1d(rows, gone)):
        told = "Cleaning drops every training pair, for the reasons told here: training would refuse this corpus."
        yield Finding(kind=NONE, weight=ACT, told=told, rows=rows)

"""Cleaning of raw rows, duplicates and leaks, and the report that counts them.

Training pairs are repaired and filtered. Validation and test pairs are repaired, and dropped only with an empty or
overlong side. Duplicates, leaks and splits taken from train are computed on 64-bit hashes of the sentences.
"""

import hashlib
import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain, repeat

import numpy as np

from dragoman.config import DataConfig
from dragoman.data.readers import Rows
from dragoman.data.text import MAX_CHARS, SPLITS, SYNTHETIC, Pair, clean_text
from dragoman.errors import UserError
from dragoman.languages import HAN, WIDE, is_chinese, length, primary

# Letters added to the shorter side before the ratio, since a word may translate to a short sentence.
EXTRA_LETTERS = 10
WITHOUT_HAN = {"ar", "en", "de", "fr", "es", "it", "pt", "nl", "pl", "cs", "sv", "fi", "ro", "tr", "ru", "uk", "vi"}
# The semicolon is required: "&copy=1" in a URL is not an entity.
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")

# Reasons to drop a pair.
EMPTY, TOO_LONG, WRONG_SCRIPT, COPY = "empty", "too long", "wrong script", "source equals target"
DUPLICATE, UNEQUAL, LEAK = "exact duplicate", "length ratio", "in validation or test"
SYNTHETIC_TARGET, DAMAGED = "synthetic target", "damaged characters"
SHARED = "shares a sentence with a split taken from train"

# Split -> counts of its pairs: those of COUNTS, and one for each reason to drop a pair.
COUNTS = ["read", "repaired", "kept"]
Report = dict[str, Counter[str]]


def reasons(counts: Counter[str]) -> str:
    """Return the reasons for the dropped pairs of a split, with their counts."""
    return ", ".join(f"{reason} {n:,}" for reason, n in counts.most_common() if n and reason not in COUNTS)


def summary(report: Report) -> str:
    """Return the report as lines for the terminal."""
    lines = [f"{'pairs':<11}{'read':>12}{'repaired':>12}{'kept':>12}  dropped"]
    for split, counts in report.items():
        if any(counts.values()):
            columns = "".join(f"{counts[name]:>12,}" for name in COUNTS)
            lines.append(f"{split:<11}{columns}  {reasons(counts)}".rstrip())
    return "\n".join(lines)


@cache
def converter(script: str, language: str) -> Callable[[str], str]:
    """Return the conversion of Chinese text to `script`; identity for other text."""
    if script not in ("hans", "hant") or not is_chinese(language):
        return str
    try:
        from opencc import OpenCC
    except ImportError:
        raise UserError(f"conversion to {script}: needs OpenCC. pip install opencc-python-reimplemented") from None
    return OpenCC("t2s" if script == "hans" else "s2t").convert


def character_map(script: str, languages: Sequence[str], texts: Iterable[str]) -> dict[str, str]:
    """Return characters of the other Chinese script, each with its replacement.

    `texts` are converted already, word by word. Characters that they still contain are left out: 乾 becomes 干, unless
    some text contains 乾隆.
    Empty if a language is Japanese or Korean, which write some of these characters themselves.
    """
    if script not in ("hans", "hant") or {"ja", "ko"} & set(map(primary, languages)):
        return {}
    convert = next((converter(script, code) for code in languages if is_chinese(code)), str)
    used = set(chain.from_iterable(texts))
    return {old: new for old in map(chr, range(0x3400, 0xA000)) if (new := convert(old)) != old and old not in used}


class Cleaner:
    """Repair and filtering of raw rows, counted in `report`."""

    def __init__(self, config: DataConfig) -> None:
        self._config, self.report = config, {split: Counter[str]() for split in SPLITS}
        self._convert_src, self._convert_tgt = (converter(config.script, code) for code in (config.src, config.tgt))
        both = config.script == "both"
        self._hans, self._hant = (converter(script if both else "keep", config.src) for script in ("hans", "hant"))
        if both and any(is_chinese(direction.tgt) for direction in config.every_direction):
            raise UserError("data.script=both: translations would mix both scripts. Choose hans or hant")

    def clean(self, rows: Rows, split: str) -> list[Pair]:
        """Return the pairs to keep, those of validation and test with references."""
        pairs, counts = [], self.report[split]
        counts["read"] += len(rows.src)
        for src, tgt, references in zip(rows.src, rows.tgt, rows.references or repeat([]), strict=False):
            # Checked first, so that the work on a very long line stays bounded.
            if len(src) > MAX_CHARS or len(tgt) > MAX_CHARS:
                counts[TOO_LONG] += 1
                continue
            clean = _repair(src, self._convert_src), _repair(tgt, self._convert_tgt)
            counts["repaired"] += clean != (src, tgt)
            if reason := self._reason_to_drop(*clean, split):
                counts[reason] += 1
            else:
                pairs.append(Pair(*clean, () if split == "train" else self._references(clean[1], references)))
        return pairs

    def fold(self, src: str) -> str:
        """Return a source as it is compared: without the tag, in one script."""
        return self._hans(src.removeprefix(SYNTHETIC))

    def forms(self, src: str) -> list[str]:
        """Return a source and, with data.script=both, its form in the other script."""
        return list(dict.fromkeys((src, self._hans(src), self._hant(src))))[:2]

    def _references(self, tgt: str, references: list[str]) -> tuple[str, ...]:
        """Return the references, tgt first; a list without tgt is of the source language."""
        texts = [_repair(text, self._convert_tgt) for text in references if len(text) <= MAX_CHARS]
        return tuple(dict.fromkeys([tgt, *filter(None, texts)])) if tgt in texts else (tgt,)

    def _reason_to_drop(self, src: str, tgt: str, split: str) -> str | None:
        if not src or not tgt:
            return EMPTY
        if split != "train":
            return None
        if "\ufffd" in src + tgt:
            return DAMAGED
        if _wrong_script(src, self._config.src) or _wrong_script(tgt, self._config.tgt):
            return WRONG_SCRIPT
        if self._config.drop_copies and src == tgt:
            return COPY
        # The tag must not be learnt as output.
        if tgt.startswith(SYNTHETIC) or (src.startswith(SYNTHETIC) and len(self._config.every_direction) > 1):
            return SYNTHETIC_TARGET
        shorter, longer = sorted(map(length, (src, tgt)))
        limit = self._config.max_ratio
        return UNEQUAL if limit and longer > limit * (shorter + EXTRA_LETTERS) else None


def _repair(text: str, convert: Callable[[str], str]) -> str:
    if "&" in text:
        text = ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    return convert(clean_text(text))


def _wrong_script(text: str, language: str) -> bool:
    """Whether Chinese text has no Han, or a WITHOUT_HAN language has CJK characters."""
    if is_chinese(language):
        return not HAN.search(text)
    return primary(language) in WITHOUT_HAN and WIDE.search(text) is not None


def hashes(pairs: Iterable[tuple[str, str]]) -> np.ndarray:
    """(2, n) uint64 of n pairs: a hash per sentence, the same on every machine."""
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for pair in pairs for text in pair)
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2).T


def pair_hashes(sentences: np.ndarray) -> np.ndarray:
    """(n,) uint64, one hash per pair; those of (a, b) and (b, a) differ."""
    src, tgt = sentences
    # Integer overflow is intended.
    mixed = (src ^ (src >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15) + tgt
    return (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)


def leaks(sentences: np.ndarray, held_out: np.ndarray, *, sentence: bool) -> np.ndarray:
    """(n,) bool, True for pairs in `held_out`, or with `sentence` for shared sides."""
    if sentence:
        return np.isin(sentences[0], held_out[0]) | np.isin(sentences[1], held_out[1])
    return np.isin(pair_hashes(sentences), pair_hashes(held_out))


def first_occurrences(values: np.ndarray) -> np.ndarray:
    """(n,) bool, True where a value appears for the first time."""
    first = np.zeros(len(values), bool)
    first[np.unique(values, return_index=True)[1]] = True
    return first


def assign_splits(
    train: np.ndarray, given: np.ndarray, sizes: dict[str, int], leak: str, counts: Counter[str], synthetic: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return a mask (n,) of the pairs to keep in train, and the indices of new splits.

    `train` (2, n) and `given` (2, m) are hashes, `given` those of the validation and test pairs that the corpora have.
    `sizes` names the splits to take from train, without the pairs of the mask `synthetic` (n,). Duplicates and leaks
    are counted in `counts`.
    """
    keep = np.ones(train.shape[1], bool)

    def drop(mask: np.ndarray, reason: str) -> None:
        counts[reason] += int((keep & mask).sum())
        keep[mask] = False

    drop(~first_occurrences(pair_hashes(train)), DUPLICATE)
    drop(leaks(train, given, sentence=leak == "sentence") | (synthetic & leaks(train, given, sentence=True)), LEAK)
    splits: dict[str, np.ndarray] = {}
    chosen = train[:, :0]
    for split, size in sizes.items():
        # A split taken from train shares no sentence with the others, for every data.leak.
        shared = leaks(train, np.hstack([given, chosen]), sentence=True)
        candidates = np.flatnonzero(keep & ~synthetic & ~shared)
        if len(candidates) > 1:
            splits[split] = _hold_out(train, candidates, size)
            keep[splits[split]] = False
            chosen = np.hstack([chosen, train[:, splits[split]]])
    drop(leaks(train, chosen, sentence=True), SHARED)
    return keep, splits


def _hold_out(train: np.ndarray, candidates: np.ndarray, size: int) -> np.ndarray:
    """Choose up to `size` candidates (n,): 2 %, or 10 % up to 100 if that is more.

    At least one is chosen. The choice depends on the hashes alone, not on the order of the corpus or a seed. Pairs of
    unique sentences come first, because training pairs that share a sentence with the split are dropped.
    """
    among = train[:, candidates]
    groups = [np.unique(side, return_inverse=True, return_counts=True) for side in among]
    counts = np.sum([n[inverse] for _, inverse, n in groups], axis=0)
    order = np.lexsort((pair_hashes(among), counts))
    return np.sort(candidates[order[: min(size, max(1, len(candidates) // 50, min(100, len(candidates) // 10)))]])

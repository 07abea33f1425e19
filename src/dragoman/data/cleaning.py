"""Which sentences are mended and which pairs are dropped, and the report that says how many of each.

Knows: the faults that can be seen in one pair of texts. Faults against the other pairs (duplicates, leaks)
are found in splits.py, faults in pieces (too long, unequal) in encoding.py; all are counted in the same
report.
Refuses to know: files, tokens, which split a pair will end up in. Training pairs are filtered; validation and
test are the measure and are only mended, except that a pair with an empty or endless side is no pair.
"""

import html
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from dragoman.data.corpus import MAX_CHARS, clean_text, defects
from dragoman.data.readers import Rows
from dragoman.errors import UserError
from dragoman.languages import is_chinese, primary

HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff\u3007]")
WITHOUT_HAN = frozenset(
    ("en", "de", "fr", "es", "it", "pt", "nl", "pl", "cs", "sv", "fi", "ro", "tr", "ru", "uk")
)

# With its semicolon: "&copy=1" in an address is none. Which of the named ones exist is for `html` to know.
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
HTML = "HTML entity"

EMPTY, TOO_LONG, WRONG_SCRIPT, COPY = "empty", "too long", "wrong script", "source equals target"
INVALID = "invalid UTF-8"  # as corpus.DEFECTS calls it
DUPLICATE, UNEQUAL, LEAK = "exact duplicate", "length ratio", "in validation or test"
SHARED = "shares a sentence with a split cut from train"


@dataclass(kw_only=True)
class Report:
    """What was read, dropped and kept, in pairs by split and reason, and `mended`, in sentences."""

    read: Counter[str] = field(default_factory=Counter)
    mended: Counter[str] = field(default_factory=Counter)
    dropped: dict[str, Counter[str]] = field(default_factory=dict)  # split -> reason -> pairs
    kept: Counter[str] = field(default_factory=Counter)

    def drop(self, split: str, reason: str, n: int = 1) -> None:
        """Count `n` pairs of `split` as dropped for `reason`."""
        if n:
            self.dropped.setdefault(split, Counter())[reason] += n

    def add(self, later: "Report") -> None:
        """Count what a later step dropped, and what it kept, as well."""
        for split, reasons in later.dropped.items():
            self.dropped.setdefault(split, Counter()).update(reasons)
        for split, n in later.kept.items():
            self.kept[split] = n

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        dropped = {split: dict(reasons) for split, reasons in self.dropped.items()}
        return {
            "read": dict(self.read),
            "mended": dict(self.mended),
            "dropped": dropped,
            "kept": dict(self.kept),
        }

    @classmethod
    def from_dict(cls, data: dict) -> "Report":
        """The report that `as_dict` wrote."""
        dropped = {split: Counter(reasons) for split, reasons in data["dropped"].items()}
        return cls(
            read=Counter(data["read"]),
            mended=Counter(data["mended"]),
            dropped=dropped,
            kept=Counter(data["kept"]),
        )

    def table(self) -> str:
        """The report as lines for the screen."""
        splits = [split for split in ("train", "validation", "test") if self.read[split] or self.kept[split]]
        reasons = sorted({reason for counts in self.dropped.values() for reason in counts})
        rows = [("read", [self.read[split] for split in splits])]
        rows += [(f"- {r}", [self.dropped.get(split, Counter())[r] for split in splits]) for r in reasons]
        rows += [("kept", [self.kept[split] for split in splits])]
        width = max(len(name) for name, _ in rows)
        lines = [f"{'pairs':{width}}" + "".join(f"{split:>13}" for split in splits)]
        lines += [f"{name:{width}}" + "".join(f"{n:13,}" for n in counts) for name, counts in rows]
        if self.mended:
            lines.append(
                "sentences mended: " + ", ".join(f"{name} {n:,}" for name, n in self.mended.most_common())
            )
        return "\n".join(lines)

    def explain(self) -> str:
        """Why training pairs were dropped, the commonest reason first, and what may be behind it."""
        reasons = self.dropped.get("train", Counter()).most_common(3)
        explained = ", ".join(f"{reason} {n:,}" for reason, n in reasons) or "none was read"
        if self.mended[INVALID] * 2 > self.read["train"]:
            return f"{explained}. Most lines are not UTF-8; convert them, e.g. iconv -f GB18030 -t UTF-8"
        if reasons and reasons[0][0] == WRONG_SCRIPT:
            return f"{explained}. Are data.src and data.tgt the right way round?"
        return explained


def converter(script: str, language: str) -> Callable[[str], str]:
    """Conversion of Chinese text to `script` (keep, hans, hant); text of other languages stays as it is."""
    if script == "keep" or not is_chinese(language):
        return str
    try:
        from opencc import OpenCC
    except ImportError:
        raise UserError(f"data.script={script} needs OpenCC: pip install -e '.[opencc]'") from None
    return OpenCC("t2s" if script == "hans" else "s2t").convert


def unescape(text: str) -> str:
    """The text with what its HTML entities stand for."""
    return ENTITY.sub(lambda entity: html.unescape(entity[0]), text)


@dataclass(kw_only=True)
class Cleaner:
    """Mends sentences and drops pairs, and counts both in `report`."""

    src: str  # language codes
    tgt: str
    script: str
    drop_copies: bool
    report: Report

    def __post_init__(self) -> None:
        self._convert_src, self._convert_tgt = (
            converter(self.script, self.src),
            converter(self.script, self.tgt),
        )

    def clean(self, rows: Rows, split: str) -> Rows:
        """The rows worth keeping, mended, each still with its line; outside of train with references, the target
        first among them."""
        kept: Rows = Rows([], [], [])
        lines: list[int] = []
        references: list[list[str]] = []
        self.report.read[split] += len(rows.src)
        for i, (src, tgt) in enumerate(zip(rows.src, rows.tgt, strict=True)):
            # Before anything looks closer: the work on an endless line stays bounded.
            if len(src) > MAX_CHARS or len(tgt) > MAX_CHARS:
                self.report.drop(split, TOO_LONG)
                continue
            src, tgt = self._mend(src, self._convert_src), self._mend(tgt, self._convert_tgt)
            if fault := self._fault(src, tgt, split):
                self.report.drop(split, fault)
                continue
            kept.src.append(src)
            kept.tgt.append(tgt)
            if rows.lines is not None:
                lines.append(rows.lines[i])
            if split != "train":
                references.append(self._references(tgt, rows.references[i] if rows.references else []))
        return kept._replace(references=references or None, lines=lines if rows.lines is not None else None)

    def _mend(self, text: str, convert: Callable[[str], str]) -> str:
        text = self._unescape(text)
        clean = clean_text(text)
        if clean != text:  # defects() is for the few that have any
            self.report.mended.update(defects(text))
        converted = convert(clean)
        if converted != clean:
            self.report.mended[f"converted to {self.script}"] += 1
        return converted

    def _unescape(self, text: str) -> str:
        """`&amp;` and the like are left over from web pages; what people type is never taken for one."""
        if "&" not in text:
            return text
        plain = unescape(text)
        if plain != text:
            self.report.mended[HTML] += 1
        return plain

    def _references(self, tgt: str, references: list[str]) -> list[str]:
        """The target and all other references.

        Those of a corpus read backwards, whose `references` belong to its other side, do not contain the
        target: by that they are recognised and left out.
        """
        cleaned = [
            self._convert_tgt(clean_text(unescape(text)))
            for text in references
            if text and len(text) <= MAX_CHARS
        ]
        return (
            [tgt, *dict.fromkeys(text for text in cleaned if text and text != tgt)]
            if tgt in cleaned
            else [tgt]
        )

    def _fault(self, src: str, tgt: str, split: str) -> str | None:
        if not src or not tgt:
            return EMPTY
        if split != "train":
            return None
        if _wrong_script(src, self.src) or _wrong_script(tgt, self.tgt):
            return WRONG_SCRIPT
        if self.drop_copies and src == tgt:
            return COPY
        return None


def _wrong_script(text: str, language: str) -> bool:
    """Chinese without a Chinese character, or one in a language that has none; others are not judged."""
    if is_chinese(language):
        return HAN.search(text) is None
    return primary(language) in WITHOUT_HAN and HAN.search(text) is not None

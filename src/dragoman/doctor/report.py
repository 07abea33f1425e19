"""Report of the data doctor: plain data, a web page, and lines for the terminal.

The page (report.html) is self-contained, without scripts. The lines are summary.j2.
"""

from typing import Any

import numpy as np
from rich.text import Text

from dragoman.config import DataConfig
from dragoman.data.readers import find as find_corpus
from dragoman.doctor.findings import chinese_scripts, faults, find, suspects
from dragoman.doctor.survey import survey, texts_of
from dragoman.errors import UserError
from dragoman.explain.page import render
from dragoman.languages import is_chinese

N_PLACES, N_EXAMPLES, MAX_SHOWN = 1000, 5, 300  # per finding; characters of a sentence
N_BARS = 41  # of a histogram
TITLES = {"act": "Needs your attention", "cleaned": "Handled by cleaning"}


def examine(config: DataConfig) -> dict[str, Any]:
    """Examine config.corpora. Raises UserError for an unreadable or empty corpus."""
    corpora = [find_corpus(corpus, config.src, config.tgt, config.root, check_lines=False) for corpus in config.corpora]
    result = survey(corpora, config)
    name = ", ".join(corpus.label for corpus in config.corpora)
    if not len(result.table):
        raise UserError(f"{name}: no pair to examine. Check the files")
    masks = faults(result)
    findings, worst = list(find(result, masks, config)), suspects(result, masks)
    texts = texts_of(corpora, {row for _, rows in findings for row in rows[:N_EXAMPLES].tolist()}.union(worst))
    src, tgt = result.table["src"]["length"], result.table["tgt"]["length"]

    def example(row: int) -> dict[str, Any]:
        return result.place(row) | dict(zip(("src", "tgt"), map(_shorten, texts[row]), strict=True))

    return {
        "corpus": name,
        "languages": [config.src, config.tgt],
        "parts": result.parts,
        "scripts": chinese_scripts(result) if any(map(is_chinese, (config.src, config.tgt))) else {},
        "findings": [
            {
                "kind": kind.name,
                "severity": kind.severity,
                "pairs": len(rows),
                "message": kind.message,
                "places": [result.place(row) for row in rows[:N_PLACES].tolist()],
                "examples": [example(row) for row in rows[:N_EXAMPLES].tolist()],
            }
            for kind, rows in findings
        ],
        "suspects": [example(row) | suspect for row, suspect in worst.items()],
        "settings": [kind.option for kind, _ in findings if kind.option],
        # To the 99.5th percentile.
        "lengths": [_histogram(side, 0, int(np.quantile(side, 0.995)) // 40 + 1) for side in (src, tgt)],
        "ratios": _histogram(np.log2((tgt + 1) / (src + 1)), -5.125, 0.25),
    }


def _shorten(text: str) -> str:
    """Return the beginning of a sentence, without lone surrogates (invalid in UTF-8)."""
    return text[:MAX_SHOWN].encode("utf-8", "replace").decode() + "…" * (len(text) > MAX_SHOWN)


def _histogram(values: np.ndarray, start: float, width: float) -> dict[str, Any]:
    """Return statistics and N_BARS bars; values outside count in the outer bars."""
    end = start + N_BARS * width
    bars = np.histogram(values.clip(start, end), N_BARS, (start, end))[0].tolist()
    summary = {"mean": float(values.mean()), "median": float(np.median(values)), "highest": float(values.max())}
    return summary | {"start": start, "width": width, "bars": bars}


def page(report: dict[str, Any]) -> bytes:
    """Return the report as HTML in UTF-8."""
    return render("doctor/report.html", **report, titles=TITLES)


def summary(report: dict[str, Any]) -> Text:
    """Return the report as lines for the terminal, coloured where rich prints them."""
    return Text.from_markup(render("doctor/summary.j2", autoescape=False, **report, titles=TITLES).decode().strip())

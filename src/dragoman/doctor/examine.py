"""A corpus in, a report out: the findings with their lines, the measures, the suspects, the settings to use.

Knows: the order of the examination and what the report (doctor.json) looks like; its keys are a promise, FORMAT is
raised when one changes its meaning. Sentences are read a second time, only those that are shown.
Refuses to know: web pages, the command line.
"""

from pathlib import Path

import numpy as np

from dragoman.data.cleaning import Cleaner, Report
from dragoman.data.prepare import DataConfig
from dragoman.data.sources import find as find_source
from dragoman.doctor import measures
from dragoman.doctor.findings import NEAR_LEAK, Finding, find, training
from dragoman.doctor.survey import Survey, Surveyor, texts_of
from dragoman.doctor.suspects import Suspect, suspects
from dragoman.errors import UserError

FORMAT = 1
LINES, EXAMPLES, SHOWN = 1000, 5, 300  # lines and examples of a finding, characters of a sentence
DROPPED = 0.005  # share of pairs that a limit may drop before another limit is proposed


def examine(config: DataConfig) -> dict[str, object]:
    """The report on config.corpora, as plain data for JSON.

    Raises UserError for what cannot be read at all: no such corpus, unequal numbers of lines, no such column.
    """
    sources = [find_source(corpus, config.src, config.tgt, config.root) for corpus in config.corpora]
    cleaner = Cleaner(
        src=config.src, tgt=config.tgt, script=config.script, drop_copies=config.drop_copies, report=Report()
    )
    survey = Surveyor(cleaner).read(sources)
    if not len(survey.table.line):
        raise UserError(f"{_named(config)} holds no pair at all")
    found, suspected = find(survey, config.src, config.tgt), suspects(survey)
    wanted = {row for finding in found for row in finding.rows[:EXAMPLES].tolist()}
    texts = texts_of(sources, survey.parts, wanted | {suspect.row for suspect in suspected})
    rows = training(survey)
    table, tokens = survey.table, measures.tokens(survey, config)
    return {
        "format": FORMAT,
        "corpus": _named(config),
        "languages": [config.src, config.tgt],
        "parts": [
            {"corpus": part.corpus, "split": part.split, "pairs": part.last - part.first, "unit": part.unit}
            for part in survey.parts
        ],
        "findings": [_finding(survey, finding, texts) for finding in found],
        "suspects": [_suspect(survey, suspect, texts) for suspect in suspected],
        "settings": [{"word": word, "why": why} for word, why in _settings(found, tokens, config)],
        "cleaning": survey.report.as_dict(),
        "lengths": [
            measures.lengths(table.src_length[rows]),
            measures.lengths(table.tgt_length[rows]),
        ],
        "ratios": measures.ratios(table.src_length[rows], table.tgt_length[rows]),
        "coverage": [
            measures.coverage(counts, config.tokenizer.character_coverage)
            for counts in (survey.characters[0], survey.characters[1])
        ],
        "tokens": tokens,
    }


def _named(config: DataConfig) -> str:
    return ", ".join(corpus.label for corpus in config.corpora)


def _place(survey: Survey, row: int) -> dict[str, object]:
    part = survey.part_of(row)
    return {"corpus": part.corpus, "split": part.split, part.unit: int(survey.table.line[row])}


def _example(survey: Survey, row: int, texts: dict[int, tuple[str, str]]) -> dict[str, object]:
    src, tgt = (_shown(text) for text in texts[row])
    return _place(survey, row) | {"src": src, "tgt": tgt}


def _near(survey: Survey, finding: Finding, row: int) -> dict[str, object]:
    """The pair that was held out, for one that nearly is it."""
    return {"near": [_shown(text) for text in survey.near[row]]} if finding.kind == NEAR_LEAK else {}


def _shown(text: str) -> str:
    """No more of it than a person reads, and nothing that JSON and UTF-8 cannot hold."""
    return text[:SHOWN].encode("utf-8", "replace").decode() + ("…" if len(text) > SHOWN else "")


def _finding(survey: Survey, finding: Finding, texts: dict[int, tuple[str, str]]) -> dict[str, object]:
    rows = finding.rows.tolist()
    return {
        "kind": finding.kind,
        "weight": finding.weight,
        "pairs": len(rows),
        "told": finding.told,
        "first": _place(survey, rows[0]),
        "places": [_place(survey, row) for row in rows[:LINES]],
        "examples": [_example(survey, row, texts) | _near(survey, finding, row) for row in rows[:EXAMPLES]],
    }


def _suspect(survey: Survey, suspect: Suspect, texts: dict[int, tuple[str, str]]) -> dict[str, object]:
    return _example(survey, suspect.row, texts) | {"nats": suspect.nats, "reasons": suspect.reasons}


def _settings(found: list[Finding], tokens: dict[str, object], config: DataConfig) -> list[tuple[str, str]]:
    """Words for train.py, each with its reason; those the configuration has already are left out."""
    proposed = [word for finding in found for word in finding.settings]
    longer, ratio = tokens.get("longer_side"), tokens.get("ratio")
    long, unequal = (float(str(tokens.get(key, 0))) for key in ("too_long", "unequal"))
    if isinstance(longer, dict) and long > DROPPED:
        limit = min(1024, -(-int(longer["0.99"]) // 32) * 32)
        told = f"data.max_length={config.max_length} would drop {long:.1%} of the pairs"
        if limit > config.max_length:
            proposed.append((f"data.max_length={limit}", told))
    if isinstance(ratio, dict) and unequal > DROPPED:
        most = float(np.ceil(2 * ratio["0.99"]) / 2)
        told = f"data.max_ratio={config.max_ratio:g} would drop {unequal:.1%}; see first whether these are any good"
        if most > config.max_ratio:
            proposed.append((f"data.max_ratio={most:g}", told))
    return [(word, why) for word, why in proposed if word not in _present(config)]


def _present(config: DataConfig) -> set[str]:
    return {f"data.leak={config.leak}", f"data.script={config.script}"}


def report_paths(output: str | None, config: DataConfig) -> tuple[Path, Path]:
    """Where the page and the JSON go: beside each other."""
    name = "_".join(
        Path(corpus.path or corpus.src_path or "").name.split(".")[0] for corpus in config.corpora
    )
    page = Path(output or f"doctor_{name}.html")
    if page.suffix != ".html":
        raise UserError(f"--output {page}: the page's name ends in .html, and the JSON will lie beside it")
    return page, page.with_suffix(".json")

"""The doctor's report as a web page, and as a few sentences for the screen.

The page (page.html) is complete in itself: no network, no script, no file beside it. Knows: how a report is laid out
and that no text of a corpus may become markup: whatever comes from it goes through `_text`. Refuses to know: how
anything in the report was found.
"""

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).with_name("page.html")
WEIGHTS = {
    "act": "For you to mend",
    "mended": "Dealt with by cleaning",
    "note": "Good to know",
}
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)

Report = Mapping[str, Any]


def page(report: Report) -> bytes:
    """The report (of examine.py) as HTML in UTF-8."""
    body = "\n".join(
        (
            _head(report),
            _settings(report),
            _findings(report),
            _suspects(report),
            _lengths(report),
            _characters(report),
            _tokens(report),
            _cleaning(report),
        )
    )
    blanks = {"title": f"{_text(report['corpus'])}: the data doctor", "body": body}
    template = TEMPLATE.read_text(encoding="utf-8")
    filled = re.sub("@(title|body)@", lambda blank: blanks[blank[1]], template)
    return filled.encode("utf-8", "replace")


def summary(report: Report) -> str:
    """The report in sentences, one to a line."""
    told = [_counted(report)]
    for finding in report["findings"]:
        if finding["weight"] == "act":
            told.append(f"{_share(report, finding)} {finding['kind']}, first on {_where(finding['first'])}.")
    mended = [f for f in report["findings"] if f["weight"] == "mended"]
    if mended:
        listed = ", ".join(f"{f['kind']} {f['pairs']:,}" for f in mended)
        told.append(f"Cleaning will deal with: {listed}.")
    if not any(finding["weight"] == "act" for finding in report["findings"]):
        told.append("Nothing asks for your hand.")
    if report["settings"]:
        told.append("Proposed: " + " ".join(each["word"] for each in report["settings"]))
    return "\n".join(told)


def _counted(report: Report) -> str:
    splits = ", ".join(f"{part['pairs']:,} of {part['split']}" for part in report["parts"])
    return f"{report['corpus']}: read {splits}."


def _share(report: Report, finding: Report) -> str:
    total = max(1, sum(part["pairs"] for part in report["parts"]))
    pairs = "1 pair:" if finding["pairs"] == 1 else f"{finding['pairs']:,} pairs:"
    percent = finding["pairs"] / total
    return f"{pairs[:-1]} ({percent:.1%}):" if percent >= 0.001 else pairs


def _where(place: Report) -> str:
    unit = "line" if "line" in place else "row"
    return f"{unit} {place[unit]:,} of {place['split']}"


def _text(text: str) -> str:
    """Of the corpus, for the page: escaped, what cannot be seen written as its code point."""
    return html.escape(_INVISIBLE.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text))


def _head(report: Report) -> str:
    counts = {
        weight: sum(finding["weight"] == weight for finding in report["findings"]) for weight in WEIGHTS
    }
    parts = "".join(
        f"<div><b>{part['pairs']:,}</b>{_text(part['split'])} pairs"
        + (f"<br><small>{_text(part['corpus'])}</small>" if len(report["parts"]) > 3 else "")
        + "</div>"
        for part in report["parts"]
    )
    tiles = "".join(f"<div><b>{n}</b>{WEIGHTS[weight].lower()}</div>" for weight, n in counts.items())
    src, tgt = map(_text, report["languages"])
    return (
        f'<h1>{_text(report["corpus"])}</h1>\n<p class="quiet">Examined by the data doctor as a corpus of {src}-{tgt}, '
        f'before training.</p>\n<div class="tiles">{parts}</div>\n<div class="tiles">{tiles}</div>'
    )


def _settings(report: Report) -> str:
    if not report["settings"]:
        return "<h2>Settings</h2>\n<p>The defaults suit this corpus: nothing is proposed.</p>"
    rows = "".join(
        f"<tr><td><code>{_text(each['word'])}</code></td><td>{_text(each['why'])}</td></tr>"
        for each in report["settings"]
    )
    words = " ".join(each["word"] for each in report["settings"])
    return f"<h2>Settings to train with</h2>\n<pre>python train.py ... {_text(words)}</pre>\n<table>{rows}</table>"


def _findings(report: Report) -> str:
    sections = []
    for weight, title in WEIGHTS.items():
        found = [finding for finding in report["findings"] if finding["weight"] == weight]
        if found:
            sections.append(f"<h2>{title}</h2>\n" + "\n".join(_finding(report, finding) for finding in found))
    return "\n".join(sections) or "<h2>Findings</h2>\n<p>None.</p>"


def _finding(report: Report, finding: Report) -> str:
    examples = "".join(_example(report, example) for example in finding["examples"])
    unit = "line" if "line" in finding["first"] else "row"
    numbers = ", ".join(f"{place[unit]:,}" for place in finding["places"][:20])
    more = ", …" if finding["pairs"] > 20 else ""
    s = "" if finding["pairs"] == 1 else "s"
    split = finding["first"]["split"]
    return (
        f'<article class="{finding["weight"]}"><b>{finding["pairs"]:,} pair{s}</b><h3>{_text(finding["kind"])}</h3>'
        f"<p>{_text(finding['told'])}</p><details><summary>{unit}{s} {numbers}{more} (first of {split})</summary>"
        f'<div class="wide"><table>{examples}</table></div></details></article>'
    )


def _example(report: Report, example: Report) -> str:
    near = example.get("near")
    beside = "" if not near else _sides(report, near[0], near[1], "held out: ")
    return f'<tr><td class="n">{_where(example)}</td>{_sides(report, example["src"], example["tgt"])}{beside}</tr>'


def _sides(report: Report, src: str, tgt: str, before: str = "") -> str:
    languages = map(_text, report["languages"])
    return "".join(
        f'<td><small>{before}</small><span lang="{language}" dir="auto">{_text(text)}</span></td>'
        for language, text in zip(languages, (src, tgt), strict=True)
    )


def _suspects(report: Report) -> str:
    if not report["suspects"]:
        return "<h2>The most suspicious pairs</h2>\n<p>None stands out.</p>"
    rows = "".join(
        f'<tr><td class="n">{_where(each)}</td>{_sides(report, each["src"], each["tgt"])}'
        f'<td>{_text("; ".join(each["reasons"]))}</td><td class="n">{each["nats"]:.1f}</td></tr>'
        for each in report["suspects"]
    )
    return (
        f"<h2>The {len(report['suspects'])} most suspicious pairs</h2>\n"
        '<p class="quiet">Suspicion is in nats: how much likelier the sides are to meet by chance than as '
        "translations, judged by lengths, digits and marks, and what each fault adds.</p>\n"
        '<div class="wide"><table><tr><th>place</th><th>source</th><th>target</th><th>why</th>'
        f'<th class="n">nats</th></tr>{rows}</table></div>'
    )


def _lengths(report: Report) -> str:
    figures = []
    for language, side in zip(report["languages"], report["lengths"], strict=True):
        if side["n"]:
            width = side["width"]
            last = len(side["bars"]) - 1
            labels = [f"{i * width}–{(i + 1) * width - 1}" if width > 1 else f"{i}" for i in range(last)] + [
                f"{last * width} and more"
            ]
            ticks = {i: f"{i * width:,}" for i in range(0, last + 1, 10)}
            told = (
                f"Characters per sentence, {_text(language)}: {side['mean']:.1f} on average, "
                f"median {side['quantiles']['0.5']:,}, longest {side['quantiles']['1']:,}"
            )
            figures.append(_figure(side["bars"], labels, ticks, told))
    ratios = report["ratios"]
    if ratios["n"]:
        step, least = ratios["bars_per_power"], ratios["least_power"]
        powers = [2 ** (least + i / step) for i in range(len(ratios["bars"]))]
        labels = [f"about {power:.3g}" for power in powers]
        ticks = {i: f"{powers[i]:.3g}" for i in range(0, len(powers), 2 * step)}
        src, tgt = map(_text, report["languages"])
        told = f"{tgt} characters for each one of {src}: median {ratios['median']:.2f}"
        figures.append(_figure(ratios["bars"], labels, ticks, told))
    return f'<h2>Lengths and their ratio, in train</h2>\n<div class="row">{"".join(figures)}</div>'


def _figure(bars: Sequence[int], labels: Sequence[str], ticks: Mapping[int, str], told: str) -> str:
    width, height, most = 400, 120, max(*bars, 1)
    step = width / len(bars)
    drawn = [f'<line x1="0" y1="{height}" x2="{width}" y2="{height}"/>']
    for i, n in enumerate(bars):
        tall = height * n / most
        if n:
            tall = max(tall, 0.75)  # or one pair among a million could not be seen
            drawn.append(
                f'<rect x="{i * step + 0.5:.1f}" y="{height - tall:.1f}" width="{step - 1:.1f}" height="{tall:.1f}">'
                f"<title>{labels[i]}: {n:,}</title></rect>"
            )
    for i, tick in ticks.items():
        place = min(max((i + 0.5) * step, 18), width - 12)
        drawn.append(f'<text x="{place:.1f}" y="{height + 14}" text-anchor="middle">{tick}</text>')
    return (
        f'<figure><svg viewBox="0 0 {width} {height + 20}" role="img" aria-label="{told}">{"".join(drawn)}</svg>'
        f"<figcaption>{told}</figcaption></figure>"
    )


def _characters(report: Report) -> str:
    columns = list(report["coverage"][0]["needed"])
    head = "".join(f'<th class="n">{float(share):.4g}</th>' for share in columns)
    rows, lost = "", ""
    for language, side in zip(report["languages"], report["coverage"], strict=True):
        cells = "".join(f'<td class="n">{side["needed"][share]:,}</td>' for share in columns)
        rows += f'<tr><td>{_text(language)}</td><td class="n">{side["different"]:,}</td>{cells}</tr>'
        if side["n_lost"]:
            chips = "".join(f"<span>{_text(each)} <small>{n:,}</small></span>" for each, n in side["lost"])
            more = " …" if side["n_lost"] > len(side["lost"]) else ""
            lost += (
                f"<p>At {side['wanted']:g}, {side['n_lost']:,} characters of {_text(language)} get no piece "
                f"of their own and are spelt in bytes; they occur {side['lost_occurrences']:,} times:</p>"
                f'<p class="chips" lang="{_text(language)}">{chips}{more}</p>'
            )
    return (
        '<h2>Characters, in train</h2>\n<p class="quiet">How many of the most frequent characters make up which share '
        'of the text.</p>\n<div class="wide"><table><tr><th>language</th><th class="n">different</th>'
        f"{head}</tr>{rows}</table></div>{lost}"
    )


def _tokens(report: Report) -> str:
    tokens = report["tokens"]
    if "error" in tokens:
        return f"<h2>Tokens</h2>\n<p>No tokenizer could be trained: {_text(tokens['error'])}</p>"
    rows = "".join(
        f'<tr><td>{_text(language)}</td><td class="n">{size:,}</td>'
        f'<td class="n">{each:.3f}</td><td class="n">{mean:.1f}</td></tr>'
        for language, size, each, mean in zip(
            report["languages"],
            tokens["vocabulary"],
            tokens["per_character"],
            tokens["per_sentence"],
            strict=True,
        )
    )
    return (
        f'<h2>Tokens</h2>\n<p class="quiet">By a tokenizer trained quickly on {tokens["pairs"]:,} pairs. Longest side: '
        f"{tokens['longer_side']['0.99']:,} tokens or fewer in 99 of 100 pairs. The limits in use would drop "
        f"{tokens['too_long']:.2%} as too long and {tokens['unequal']:.2%} as too unequal.</p>\n"
        '<table><tr><th>language</th><th class="n">vocabulary</th><th class="n">tokens per character</th>'
        f'<th class="n">tokens per sentence</th></tr>{rows}</table>'
    )


def _cleaning(report: Report) -> str:
    cleaning = report["cleaning"]
    rows = [(f"read, {split}", n) for split, n in cleaning["read"].items()]
    rows += [
        (f"dropped from {split}: {why}", n)
        for split, reasons in cleaning["dropped"].items()
        for why, n in reasons.items()
    ]
    rows += [(f"sentences mended: {why}", n) for why, n in cleaning["mended"].items()]
    cells = "".join(f'<tr><td>{_text(told)}</td><td class="n">{n:,}</td></tr>' for told, n in rows)
    return f"<h2>What cleaning will do</h2>\n<table>{cells}</table>"

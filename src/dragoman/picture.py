"""Numbers in, PNG bytes out: attention as heat maps, training curves as lines, growth beside its law.

The only file that imports matplotlib, and only inside functions: it is slow to load and most programs draw
nothing. Figures are built without pyplot, so that no window system is asked and no figure stays in memory.

Chinese is never drawn as boxes. Every text goes first to the font carried in fonts/ (a picture looks the same
on every machine), then, character by character, to matplotlib's own DejaVu Sans and to a font of the system;
what none of them has is written out as `<U+1F600>`. Knows nothing of models; touches no file but the fonts.
"""

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CARRIED = Path(__file__).parent / "fonts" / "DragomanHan-Regular.otf"
SYSTEM = (  # families with many thousand hanzi, asked only for characters which the carried font lacks
    "Noto Sans CJK SC", "Noto Sans CJK TC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC",
    "Source Han Sans CN", "Source Han Sans", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "PingFang SC",
    "Hiragino Sans GB", "Heiti SC", "STHeiti", "Microsoft YaHei", "SimHei", "Arial Unicode MS",
)  # fmt: skip

INK, QUIET, ACCENTS = "#1f2933", "#7b8794", ("#1f5fa8", "#d9730d", "#2e8b57", "#8e44ad", "#b03a2e", "#52606d")
CELL, LONGEST_SIDE = 0.27, 7.5  # inches per token, and the most that one head's map may measure
LABELS = 48  # on one side; of a longer sentence only every second, third ... piece is named


@contextmanager
def _drawing() -> Iterator[None]:
    """Our fonts, in the order of `_fonts`, and `$` as a character rather than the beginning of a formula."""
    import matplotlib

    families = [_family(path) for path in _fonts()]
    with matplotlib.rc_context({"font.family": families, "text.parse_math": False}):
        yield


@_drawing()
def attention_figure(weights: Any, rows: Sequence[str], columns: Sequence[str], title: str = "") -> bytes:
    """The weights of one layer as one heat map per head.

    weights: (H, T, S) array or CPU tensor; rows: the T pieces that look; columns: the S pieces looked at. All
    heads share one scale, printed beside them. Raises ValueError when the sizes differ.
    """
    weights = np.asarray(weights, dtype=np.float32)
    if weights.ndim != 3 or 0 in weights.shape or weights.shape[1:] != (len(rows), len(columns)):
        raise ValueError(f"weights {weights.shape} do not fit {len(rows)} rows and {len(columns)} columns")
    n_heads, n_rows, n_columns = weights.shape
    across = n_heads if n_heads < 4 else math.ceil(math.sqrt(n_heads))
    down = math.ceil(n_heads / across)
    cell = min(CELL, LONGEST_SIDE / max(n_rows, n_columns))
    row_labels, column_labels = (
        [_label(piece) for piece in rows],
        [_upright(_label(piece)) for piece in columns],
    )
    left = 0.35 + 0.085 * max(map(_width, row_labels))
    top = 0.2 + max(map(_rise, column_labels))
    heading = 0.45 if title else 0.1
    width, height = max(1.0, n_columns * cell), max(0.8, n_rows * cell)
    full_width = max(across * (left + width) + 0.75, min(12.0, 0.3 + 0.1 * _width(title)))
    full_height = heading + down * (top + 0.35 + height) + 0.05
    figure = _figure(full_width, full_height)
    if title:
        figure.text(
            0.12 / full_width, 1 - 0.25 / full_height, printable(title), fontsize=11, va="center", color=INK
        )
    highest = float(weights.max()) or 1.0
    for head in range(n_heads):
        x = left + (head % across) * (left + width)
        y = full_height - heading - (head // across + 1) * (top + 0.35 + height) + 0.35
        axes = figure.add_axes((x / full_width, y / full_height, width / full_width, height / full_height))
        picture = axes.imshow(
            weights[head], cmap="Blues", vmin=0, vmax=highest, aspect="auto", interpolation="nearest"
        )
        _name_cells(axes, row_labels, column_labels)
        if n_heads > 1:
            axes.set_xlabel(f"head {head + 1}", fontsize=8, color=QUIET, labelpad=4)
    bar = figure.add_axes(
        (
            (across * (left + width) + 0.2) / full_width,
            0.4 / full_height,
            0.09 / full_width,
            min(1.4, height) / full_height,
        )
    )
    figure.colorbar(picture, cax=bar, ticks=[0, highest], format="%.2f").outline.set_visible(False)
    bar.tick_params(labelsize=7, length=0, colors=QUIET)
    return _png(figure)


@_drawing()
def curve_figure(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]], xlabel: str, ylabel: str, title: str = ""
) -> bytes:
    """Lines over a common x axis: {name: (x values, y values)}. Each line is named at its end.

    Beyond six lines the colours come again, dashed, and "- -" stands before the name.
    """
    figure = _figure(7.2, 4.0)
    axes = figure.add_axes((0.1, 0.14, 0.74, 0.74))
    ends: list[tuple[float, float, str, str]] = []
    for n, (name, (x, y)) in enumerate(series.items()):
        colour = ACCENTS[n % len(ACCENTS)]
        again = n >= len(ACCENTS)
        style, marker = "--" if again else "-", "o" if len(x) <= 30 else ""
        axes.plot(x, y, style, color=colour, linewidth=1.8, marker=marker, markersize=3.5)
        if len(x):
            ends.append((float(x[-1]), float(y[-1]), f"- - {name}" if again else name, colour))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#cbd2d9")
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, length=0, colors=QUIET)
    axes.set_xlabel(printable(xlabel), fontsize=10, color=INK)
    axes.set_ylabel(printable(ylabel), fontsize=10, color=INK)
    axes.set_title(printable(title), fontsize=12, color=INK, loc="left", pad=12)
    low, high = axes.get_ylim()
    floor = -math.inf
    for x_end, y_end, name, colour in sorted(ends, key=lambda end: end[1]):
        floor = max(y_end, floor + 0.06 * (high - low))  # two lines may end together; their names may not
        axes.text(x_end, floor, "  " + printable(name), fontsize=10, color=colour, va="center", clip_on=False)
    return _png(figure)


class Growth(NamedTuple):
    """How a measured `y` grows with `x`, beside a `law` for the same x. All positive."""

    title: str
    xlabel: str
    x: Sequence[float]
    y: Sequence[float]
    law: Sequence[float]
    note: str  # written under the title


@_drawing()
def growth_figure(panels: Sequence[Growth]) -> bytes:
    """A panel for each, both axes logarithmic: dots are what was measured, the dashed line is the law."""
    from matplotlib.ticker import LogLocator

    across = min(4, max(1, len(panels)))
    down = math.ceil(len(panels) / across) or 1
    figure = _figure(2.9 * across, 2.7 * down)
    for n, panel in enumerate(panels):
        axes = figure.add_subplot(down, across, n + 1)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.plot(panel.x, panel.law, "--", color=QUIET, linewidth=1.2)
        axes.plot(panel.x, panel.y, "o-", color=ACCENTS[0], linewidth=1.6, markersize=4)
        seen = [*panel.y, *panel.law]
        if seen and max(seen) < 3 * min(seen):  # or noise would fill the panel
            middle = math.sqrt(max(seen) * min(seen))
            axes.set_ylim(middle / 3, middle * 3)
        ends = {min(panel.x, default=0), max(panel.x, default=0)}
        axes.set_xticks(panel.x, [f"{x:,.0f}" if x in ends else "" for x in panel.x])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=7))
        axes.yaxis.set_major_formatter(
            lambda y, _: f"{y:,g}"
        )  # the usual 10^2 is a formula, and needs its parser
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7, colors=QUIET)
        axes.set_xlabel(printable(panel.xlabel), fontsize=8, color=INK)
        axes.set_title(
            "\n".join(map(printable, (panel.title, panel.note))), fontsize=8, color=INK, loc="left"
        )
    figure.tight_layout()
    return _png(figure)


def pixels(png: bytes) -> np.ndarray:
    """(height, width, 3) uint8, as TensorBoard's `add_image(..., dataformats="HWC")` takes it."""
    from matplotlib.image import imread

    return (imread(io.BytesIO(png), format="png")[:, :, :3] * 255).round().astype(np.uint8)


def printable(text: str) -> str:
    """`text` with each character that no font here draws written as its code point: '😀' -> '<U+1F600>'."""
    drawable = frozenset().union(*(_characters(path) for path in _fonts()))
    return "".join(c if ord(c) in drawable and c.isprintable() else f"<U+{ord(c):04X}>" for c in text)


def _label(piece: str) -> str:
    short = piece if len(piece) <= 16 else piece[:15] + "…"
    return printable(
        short.replace("\u2581", "_")
    )  # sentencepiece's word mark is a wide block in a Chinese font


def _upright(label: str) -> str:
    """Chinese above a column runs from top to bottom; only Latin is turned."""
    return "\n".join(label) if all(ord(c) >= 0x2E80 for c in label.lstrip("_")) else label


def _is_flat(label: str) -> bool:
    return "\n" in label or _width(label) <= 2


def _rise(label: str) -> float:
    """Inches that a label takes above its column."""
    return 0.17 * (label.count("\n") + 1) if _is_flat(label) else 0.085 * _width(label)


def _width(text: str) -> int:
    """Columns as a typewriter counts them: a hanzi takes two."""
    return sum(2 if ord(c) >= 0x2E80 else 1 for c in text)


def _name_cells(axes: Any, row_labels: Sequence[str], column_labels: Sequence[str]) -> None:
    size = 9 if max(len(row_labels), len(column_labels)) <= LABELS / 2 else 7
    rows = range(0, len(row_labels), math.ceil(len(row_labels) / LABELS))
    columns = range(0, len(column_labels), math.ceil(len(column_labels) / LABELS))
    axes.set_yticks(rows, [row_labels[n] for n in rows], fontsize=size, color=INK)
    axes.set_xticks(columns, [column_labels[n] for n in columns], fontsize=size, color=INK, linespacing=1.0)
    axes.tick_params(length=0, labeltop=True, labelbottom=False, pad=3)
    for text in axes.get_xticklabels():
        text.set(rotation=0 if _is_flat(text.get_text()) else 90, va="bottom")
    axes.spines[:].set_color("#cbd2d9")


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=110, facecolor="white")


def _png(figure: "Figure") -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


@cache
def _fonts() -> tuple[Path, ...]:
    """The fonts to ask, in order; all known to matplotlib by their family name."""
    from matplotlib import font_manager

    font_manager.fontManager.addfont(str(CARRIED))
    plain = Path(font_manager.findfont("DejaVu Sans"))  # comes with matplotlib
    return (CARRIED, plain, *_system_fonts(font_manager.fontManager.ttflist))


def _system_fonts(entries: Iterable[Any]) -> list[Path]:
    """At most one font of the system: the first of `SYSTEM` that is installed."""
    by_family = {entry.name: Path(entry.fname) for entry in entries}
    return [by_family[family] for family in SYSTEM if family in by_family][:1]


@cache
def _family(path: Path) -> str:
    from matplotlib.ft2font import FT2Font

    return FT2Font(str(path)).family_name


@cache
def _characters(path: Path) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(str(path)).get_charmap())

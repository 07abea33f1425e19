"""PNG figures: attention weights and other matrices as heat maps, curves as lines.

matplotlib is imported inside functions, because it loads slowly. Figures are built without pyplot, which would search
for a window system and keep every figure in memory. For each character, the first font that has it is used: the one in
fonts/, DejaVu Sans, or one Chinese font of the system.
"""

import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len

FONT = Path(__file__).parents[1] / "fonts" / "DragomanHan-Regular.otf"
SYSTEM_FONTS = ("Noto Sans CJK SC", "Source Han Sans SC", "PingFang SC", "Microsoft YaHei", "Arial Unicode MS")
COLOURS = ["#1f5fa8", "#d9730d", "#2e8b57", "#8e44ad", "#b03a2e", "#52606d"]
STYLE: dict[Any, Any] = {
    "text.color": "#1f2933", "xtick.labelcolor": "#1f2933", "ytick.labelcolor": "#1f2933",
    "axes.labelcolor": "#7b8794", "axes.edgecolor": "#cbd2d9", "grid.color": "#e4e7eb", "font.size": 9,
    "axes.titlesize": 11, "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False,
    "axes.prop_cycle": f"cycler(ls=['-', '--', ':']) * cycler(c={COLOURS})",
    "lines.linewidth": 1.8, "lines.markersize": 3.5, "legend.frameon": False, "legend.labelcolor": "linecolor",
    "image.aspect": "auto", "image.interpolation": "nearest", "figure.constrained_layout.use": True,
    "xtick.major.size": 0, "ytick.major.size": 0, "figure.dpi": 110,
    # `$` is a plain character, not the start of a formula.
    "text.parse_math": False,
}  # fmt: skip
# Inches per token and per letter of a label, and the longest side of one head's map.
CELL, LETTER, LONGEST_SIDE = 0.27, 0.09, 7.5
MAX_LABELS = 48  # on one side; longer sentences have a label at every second, third ... piece

Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # name -> x values, y values


@contextmanager
def _figure(width: float, height: float) -> Iterator[Any]:
    """Open a figure (inches) with the fonts and style of Dragoman."""
    import matplotlib
    from matplotlib.figure import Figure

    # A character that no font has is drawn as a box, without a warning.
    with matplotlib.rc_context({"font.family": _fonts(), **STYLE}), warnings.catch_warnings(action="ignore"):
        yield Figure(figsize=(width, height))


def attention_figure(weights: Any, rows: Sequence[str], columns: Sequence[str], title: str = "") -> bytes:
    """Draw the weights (H, T, S) of one layer as one heat map per head.

    rows: the T query pieces; columns: the S key pieces. All heads share one colour scale.
    """
    weights = np.asarray(weights, dtype=np.float32)
    n_heads, n_rows, n_columns = weights.shape
    across = n_heads if n_heads < 4 else math.ceil(math.sqrt(n_heads))
    down = math.ceil(n_heads / across)
    # ▁ is a wide block in a Chinese font.
    row_labels, column_labels = ([piece[:16].replace("▁", "_") for piece in pieces] for pieces in (rows, columns))
    cell = min(CELL, LONGEST_SIDE / max(n_rows, n_columns))
    width = max(1.0, n_columns * cell) + LETTER * max(map(cell_len, row_labels)) + 0.3
    height = max(0.8, n_rows * cell) + LETTER * max(map(cell_len, column_labels)) + 0.6
    with _figure(max(across * width + 0.8, min(12.0, LETTER * cell_len(title))), down * height + 0.4) as figure:
        figure.suptitle(title, fontsize=11, x=0.02, ha="left")
        grid = figure.subplots(down, across, squeeze=False)
        highest = float(weights.max()) or 1.0
        for axes in grid.flat[n_heads:]:
            axes.set_axis_off()
        for head, axes in enumerate(grid.flat[:n_heads]):
            image = axes.imshow(weights[head], "Blues", vmin=0, vmax=highest)
            _label_cells(axes, row_labels, column_labels)
            axes.set_xlabel(f"head {head + 1}" if n_heads > 1 else "")
        figure.colorbar(image, ax=grid, ticks=[0, highest], format="%.2f", aspect=15, shrink=1 / down)
        return _png(figure)


def curve_figure(series: Series, xlabel: str, ylabel: str, title: str = "", aspect: str = "auto") -> bytes:
    """Draw lines {name: (x values, y values)}; aspect: "auto" or "equal"."""
    with _figure(7.2, 4.0) as figure:
        axes = figure.subplots()
        for name, (x, y) in series.items():
            axes.plot(x, y, label=name, marker="o" if len(x) <= 30 else "")
        axes.grid(axis="y")
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title, aspect=aspect)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        return _png(figure)


def heat_figure(maps: Mapping[str, Any], xlabel: str, ylabel: str, first: int = 0) -> bytes:
    """Draw {title: (rows, columns)}, counted from `first`; red is above 0, blue below."""
    with _figure(0.6 + 4.2 * len(maps), 3.8) as figure:
        for axes, (title, matrix) in zip(figure.subplots(1, len(maps), squeeze=False).flat, maps.items(), strict=True):
            values = np.asarray(matrix, dtype=np.float32)
            highest = float(np.abs(values).max()) or 1.0
            low, (bottom, right) = first - 0.5, np.array(values.shape) + first - 0.5
            image = axes.imshow(values, "RdBu_r", vmin=-highest, vmax=highest, extent=(low, right, bottom, low))
            axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
            axes.locator_params(integer=True)
            figure.colorbar(image, ax=axes, ticks=[-highest, 0, highest], format="%.1f")
        return _png(figure)


def pixels(png: bytes) -> np.ndarray:
    """Decode a PNG to (height, width, 3) uint8, TensorBoard's layout "HWC"."""
    from matplotlib.image import imread

    return (imread(io.BytesIO(png), format="png")[:, :, :3] * 255).round().astype(np.uint8)


def _label_cells(axes: Any, row_labels: Sequence[str], column_labels: Sequence[str]) -> None:
    """Label rows on the left, columns on top: Chinese vertical, Latin rotated."""
    size = 9 if max(len(row_labels), len(column_labels)) <= MAX_LABELS / 2 else 7
    columns = ["\n".join(label) if cell_len(label) >= 1.5 * len(label) else label for label in column_labels]
    for ticks, labels in ((axes.set_yticks, row_labels), (axes.set_xticks, columns)):
        shown = range(0, len(labels), math.ceil(len(labels) / MAX_LABELS))
        ticks(shown, [labels[n] for n in shown], fontsize=size, linespacing=1.0)
    axes.tick_params(labeltop=True, labelbottom=False)
    for text in axes.get_xticklabels():
        is_flat = "\n" in text.get_text() or cell_len(text.get_text()) <= 2
        text.set(rotation=0 if is_flat else 90, va="bottom")


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


@cache
def _fonts() -> list[str]:
    """Return the names of the fonts, in order of preference."""
    from matplotlib.font_manager import fontManager

    fontManager.addfont(str(FONT))
    installed = [family for family in SYSTEM_FONTS if family in fontManager.get_font_names()]
    return ["Dragoman Han", "DejaVu Sans", *installed[:1]]

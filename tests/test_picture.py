"""Pictures are PNGs whose every label can be read."""

import gzip
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dragoman import picture
from dragoman.picture import Growth, attention_figure, curve_figure, growth_figure, pixels, printable

PIECES = ["▁好久", "不见", "，", "你", "怎么样", "？", "</s>"]


@pytest.fixture(autouse=True)
def missing_glyphs_are_errors() -> Iterator[None]:
    """matplotlib warns when it draws a box for a character."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def uniform(heads: int, rows: int, columns: int) -> np.ndarray:
    return np.full((heads, rows, columns), 1 / columns, dtype=np.float32)


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_attention_becomes_a_png_of_every_head(heads: int) -> None:
    png = attention_figure(uniform(heads, 3, 7), ["<s>", "▁Long", "▁time"], PIECES, "step 好久不见")
    image = pixels(png)
    assert png.startswith(b"\x89PNG")
    assert image.dtype == np.uint8
    assert image.shape[2] == 3
    one = pixels(attention_figure(uniform(1, 3, 7), ["<s>", "▁Long", "▁time"], PIECES, "step 好久不见"))
    assert heads == 1 or image.size > one.size


def test_a_large_weight_is_darker_and_stands_at_its_row_and_column() -> None:
    def darkness(row: int, column: int) -> tuple[float, float]:
        weights = np.zeros((1, 5, 5), dtype=np.float32)
        weights[0, row, column] = 1
        image = pixels(attention_figure(weights, list("abcde"), list("abcde"))).astype(int)
        dark_blue = (image[:, :, 2] - image[:, :, 0] > 60) & (image.sum(2) < 250)
        dark_blue[:, -image.shape[1] // 4 :] = False  # the scale at the right
        y, x = np.nonzero(dark_blue)
        return float(y.mean()), float(x.mean())

    top, left = darkness(0, 0)
    bottom, right = darkness(4, 2)
    assert top < bottom
    assert left < right


def test_different_hanzi_look_different() -> None:
    images = [pixels(attention_figure(uniform(1, 1, 1), ["a"], [piece])) for piece in "我你他日月"]
    assert len({image.tobytes() for image in images}) == 5


def test_no_box_is_drawn_for_any_script() -> None:
    pieces = ["我", "龘", "😀", "Ж", "한국", "<0xE4>", "$a$", "\x00", "\ue000", "क", "𠀀"]
    attention_figure(uniform(2, 11, 11), pieces, pieces, " ".join(pieces))
    curve_figure({piece: ([0, 1], [0, 1]) for piece in pieces}, "步", "分", "$曲线$")


def test_all_of_gb_2312_is_carried() -> None:
    codes = (bytes([row, cell]) for row in range(0xA1, 0xF8) for cell in range(0xA1, 0xFF))
    text = "".join(code.decode("gb2312", errors="ignore") for code in codes)
    assert len(text) > 7000
    assert printable(text.replace("\u3000", "")) == text.replace("\u3000", "")
    assert {ord(c) for c in text} <= picture._characters(picture.CARRIED)


def test_what_no_font_has_is_written_as_its_code_point() -> None:
    assert printable("a\ue000好") == "a<U+E000>好"
    assert printable("\x07") == "<U+0007>"


def test_a_font_of_the_system_is_asked_in_our_order_and_only_one() -> None:
    installed = [SimpleNamespace(name=n, fname=f"/f/{n}") for n in ("SimHei", "Noto Sans CJK SC", "Comic")]
    assert picture._system_fonts(installed) == [Path("/f/Noto Sans CJK SC")]
    assert picture._system_fonts(installed[2:]) == []


def test_a_sentence_of_hundreds_of_pieces_stays_a_picture_one_can_open() -> None:
    many = [f"▁word{n}" for n in range(400)]
    height, width, _ = pixels(attention_figure(uniform(1, 400, 300), many, many[:300])).shape
    assert max(height, width) < 2000


@pytest.mark.parametrize("shape", [(3, 7), (1, 7, 3), (1, 3, 0)])
def test_weights_that_do_not_fit_their_labels_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="do not fit 3 rows and 7 columns"):
        attention_figure(np.zeros(shape), ["a", "b", "c"], PIECES)


def test_curves_follow_their_numbers() -> None:
    def low_edge(values: list[float]) -> np.ndarray:
        return pixels(curve_figure({"BLEU 分数": (list(range(5)), values)}, "minutes", "score", "tatoeba"))

    assert not np.array_equal(low_edge([0, 1, 2, 3, 4]), low_edge([4, 3, 2, 1, 0]))


def test_a_seventh_line_has_the_first_ones_colour_and_is_told_from_it_by_its_dashes() -> None:
    def ink_of(drawn: str) -> int:
        series = {name: (list(range(40)), [5] * 40) if name == drawn else ([], []) for name in "abcdefg"}
        colour = [int(picture.ACCENTS[0][i : i + 2], 16) for i in (1, 3, 5)]
        return int((pixels(curve_figure(series, "x", "y")) == colour).all(axis=-1).sum())

    assert 0 < ink_of("g") < 0.8 * ink_of("a")
    assert ink_of("b") == 0


def test_growth_is_drawn_where_it_was_measured_and_nothing_yet_draws_nothing() -> None:
    def panel(power: float) -> np.ndarray:
        x = [1.0, 10.0, 100.0]
        return pixels(growth_figure([Growth("秒", "pairs", x, [v**power for v in x], x, "law")] * 5))

    assert not np.array_equal(panel(1.0), panel(2.0))
    assert growth_figure([]).startswith(b"\x89PNG")


def test_a_series_without_points_is_left_empty() -> None:
    assert curve_figure({"none yet": ([], [])}, "step", "loss").startswith(b"\x89PNG")


def test_importing_the_module_does_not_import_matplotlib() -> None:
    program = "import sys, dragoman.picture; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_settings_of_others_are_left_alone() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    curve_figure({"a": ([0, 1], [0, 1])}, "x", "y")
    assert dict(matplotlib.rcParams) == before


def test_every_character_of_the_phrasebook_can_be_drawn() -> None:
    files = sorted((Path(__file__).parents[1] / "data" / "phrasebook").glob("*.jsonl.gz"))
    if not files:
        pytest.skip("no phrasebook here")
    characters: set[str] = set()
    for path in files:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                characters |= set("".join(json.loads(line)["translation"].values()))
    assert len(characters) > 500
    assert {ord(c) for c in characters} <= picture._characters(picture.CARRIED)

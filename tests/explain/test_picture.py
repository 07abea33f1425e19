"""Pictures: PNGs of a readable size, of every head and curve."""

import numpy as np
from matplotlib.ft2font import FT2Font

from dragoman.explain.picture import FONT, _fonts, attention_figure, curve_figure, pixels

PIECES = ["▁好久", "不见", "，", "你", "怎么样", "？", "</s>"]


def uniform(heads: int, rows: int, columns: int) -> np.ndarray:
    return np.full((heads, rows, columns), 1 / columns, dtype=np.float32)


def test_every_head_is_drawn() -> None:
    rows = ["<s>", "▁Long", "▁time"]
    one, several = (pixels(attention_figure(uniform(n, 3, 7), rows, PIECES, "好久")) for n in (1, 5))
    assert several.dtype == np.uint8
    assert several.shape[2] == 3
    assert several.size > one.size


def test_large_weight_is_dark_at_its_row_and_column() -> None:
    def dark_centre(row: int, column: int) -> tuple[float, float]:
        weights = np.zeros((1, 5, 5), dtype=np.float32)
        weights[0, row, column] = 1
        image = pixels(attention_figure(weights, list("abcde"), list("abcde"))).astype(int)
        dark_blue = (image[:, :, 2] - image[:, :, 0] > 60) & (image.sum(2) < 250)
        dark_blue[:, -image.shape[1] // 4 :] = False  # the colour scale
        y, x = np.nonzero(dark_blue)
        return float(y.mean()), float(x.mean())

    (top, left), (bottom, right) = dark_centre(0, 0), dark_centre(4, 2)
    assert top < bottom
    assert left < right


def test_text_of_any_script_makes_a_picture() -> None:
    pieces = ["我", "龘", "😀", "Ж", "한국", "<0xE4>", "$a$", "\x00", "\ue000", "क", "𠀀"]
    attention_figure(uniform(2, 11, 11), pieces, pieces, " ".join(pieces))
    curve_figure({piece: ([0, 1], [0, 1]) for piece in pieces}, "步", "分", "$曲线$")


def test_the_font_has_every_character_of_gb_2312() -> None:
    codes = (bytes([row, cell]) for row in range(0xB0, 0xF8) for cell in range(0xA1, 0xFF))
    text = "".join(code.decode("gb2312", "ignore") for code in codes)
    assert len(text) > 6000
    font = FT2Font(str(FONT))
    assert font.family_name == _fonts()[0]
    assert set(map(ord, text)) <= font.get_charmap().keys()


def test_long_sentence_stays_a_picture_that_opens() -> None:
    many = [f"▁word{n}" for n in range(200)]
    height, width, _ = pixels(attention_figure(uniform(1, 200, 150), many, many[:150])).shape
    assert max(height, width) < 2000


def test_curves_follow_their_numbers() -> None:
    curves = [0, 1, 2], [2, 1, 0], []
    assert len({curve_figure({"BLEU": (list(range(len(c))), c)}, "step", "score") for c in curves}) == 3

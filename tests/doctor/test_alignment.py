"""Detection of the rows with alignment drift, and of no others."""

import numpy as np
import pytest

N = 900


def messages(report: dict) -> list[str]:
    return [finding["message"] for finding in report["findings"] if finding["kind"] == "alignment drift"]


def test_sound_corpus_in_any_order_shows_no_drift(doctor, sound) -> None:
    pairs = sound(N)
    free = [(zh, f"{en} " * (1 + i % 3)) for i, (zh, en) in enumerate(pairs[:60])]
    by_target = sorted(pairs, key=lambda pair: len(pair[1]))
    for arranged in (pairs, sorted(pairs), pairs * 2, by_target, pairs + free):
        assert messages(doctor(arranged)) == []


@pytest.mark.parametrize(("side", "n_lost"), [(0, 1), (1, 3)])
def test_drift_is_found_with_its_row_and_side(side, n_lost, doctor, sound, rows_of) -> None:
    columns = [list(column) for column in zip(*sound(N), strict=True)]
    columns[side] = columns[side][:400] + columns[side][400 + n_lost :] + columns[side][:n_lost]
    report = doctor(list(zip(*columns, strict=True)))
    rows = rows_of(report, "alignment drift")
    assert abs(rows[0] - 401) <= 6
    assert rows[-1] >= N - 10
    units = f"{n_lost} row{'s' if n_lost > 1 else ''}"
    assert f"the {('source', 'target')[side]} lacks {units}" in messages(report)[0]


def test_drift_ends_where_it_is_corrected(doctor, sound, rows_of) -> None:
    src, tgt = map(list, zip(*sound(N), strict=True))
    tgt = [*tgt[:300], *tgt[301:700], "Something.", *tgt[700:]]
    rows = rows_of(doctor(list(zip(src, tgt, strict=True))), "alignment drift")
    assert abs(rows[0] - 301) <= 6
    assert abs(rows[-1] - 700) <= 6


def test_file_may_be_shifted_from_its_first_row(doctor, sound, rows_of) -> None:
    src, tgt = zip(*sound(N), strict=True)
    assert rows_of(doctor(list(zip(src, tgt[1:] + tgt[:1], strict=True))), "alignment drift")[0] <= 3


def test_stretch_that_fits_no_shift_is_reported(doctor, sound, rows_of) -> None:
    pairs = sound(N)
    mixed = 300 + np.random.default_rng(1).permutation(400)
    pairs[300:700] = [(pairs[i][0], pairs[j][1]) for i, j in zip(range(300, 700), mixed.tolist(), strict=True)]
    report = doctor(pairs)
    assert abs(rows_of(report, "alignment drift")[0] - 301) <= 15
    assert "no small shift corrects them" in messages(report)[0]

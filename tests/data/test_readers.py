"""Files of every kind give the same rows; damaged ones are read to their end or refused in one line."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from corpora import PAIRS, translation, write_folder, write_tsv
from dragoman.data.corpus import MAX_CHARS, CorpusConfig
from dragoman.data.readers import LINE_LIMIT, check_aligned, count_lines, drift_line, lines
from dragoman.data.sources import find
from dragoman.errors import UserError

ROWS = PAIRS[:50]


def read(config: CorpusConfig, src: str = "zh", tgt: str = "en") -> list[tuple[str, str]]:
    splits = find(config, src, tgt, root=None).open()
    assert list(splits) == ["train"]
    rows = list(splits["train"].chunks)
    pairs = [pair for chunk in rows for pair in zip(chunk.src, chunk.tgt, strict=True)]
    assert splits["train"].n_rows >= len(pairs)
    return pairs


def pack(path: Path, content: bytes, packing: str) -> Path:
    packed = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[packing](content)
    path = path.with_name(path.name + packing)
    path.write_bytes(packed)
    return path


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["aligned", "tsv", "tsv with header", "jsonl", "flat jsonl", "parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, kind: str, packing: str) -> None:
    if kind == "aligned":
        sides = [
            pack(tmp_path / f"text.{side}", "".join(f"{pair[i]}\n" for pair in ROWS).encode(), packing)
            for i, side in enumerate(("zh", "en"))
        ]
        assert read(CorpusConfig(src_path=str(sides[0]), tgt_path=str(sides[1]))) == ROWS
        return
    if kind == "parquet":
        table = pa.Table.from_pylist([translation(*pair) for pair in ROWS])
        pq.write_table(table, tmp_path / "table.parquet")
        content, name = (tmp_path / "table.parquet").read_bytes(), "corpus.parquet"
    elif kind.endswith("jsonl"):
        objects = [translation(*pair) if kind == "jsonl" else {"en": pair[1], "zh": pair[0]} for pair in ROWS]
        content, name = "\n".join(json.dumps(row) for row in objects).encode(), "corpus.jsonl"
    else:
        table_rows = [("en", "zh"), *((b, a) for a, b in ROWS)] if kind == "tsv with header" else ROWS
        content, name = "".join(f"{a}\t{b}\n" for a, b in table_rows).encode(), "corpus.tsv"
    assert read(CorpusConfig(path=str(pack(tmp_path / name, content, packing)))) == ROWS


def test_a_folder_laid_out_like_a_hub_dataset_gives_the_same_rows(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "corpus", {"train": [translation(*pair) for pair in ROWS]})
    assert read(CorpusConfig(path=str(folder))) == ROWS
    flat = write_folder(tmp_path / "flat", {"train": [{"a": pair[0], "b": pair[1]} for pair in ROWS]})
    assert read(CorpusConfig(path=str(flat), src_column="a", tgt_column="b")) == ROWS


def test_lines_end_at_newline_bytes_only(tmp_path: Path) -> None:
    texts = ["one\u2028still one", "two\r", "\x0b\x0c\x1c\x85", "", "last without newline"]
    path = tmp_path / "text"
    path.write_bytes("\n".join(texts).encode())
    assert list(lines(path)) == texts
    assert count_lines(path)[0] == len(texts)


@pytest.mark.parametrize("content", [b"", b"\n", b"a", b"a\n", b"a\n\n", b"\n\na"])
def test_counting_lines_agrees_with_reading_them(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    assert count_lines(path) == (len(list(lines(path))), len(content))


def test_an_endless_line_is_cut_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"x" * (2 * LINE_LIMIT + 7) + b"\nnext\n")
    endless, following = lines(path)
    assert len(endless) == LINE_LIMIT
    assert following == "next"


def test_bytes_that_are_no_utf8_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"good\nb\xffd\xc3\n\xed\xa0\x80\nend\n")
    assert len(list(lines(path))) == 4


@pytest.mark.parametrize("gap", [0, 150, 299])
@pytest.mark.parametrize("side", ["src", "tgt"])
def test_unequal_line_counts_are_refused_with_both_counts_and_where_the_drift_begins(
    tmp_path: Path, gap: int, side: str
) -> None:
    chance = np.random.default_rng(3)
    words = chance.integers(1, 25, 300)
    texts = {"src": ["字" * int(n) for n in words], "tgt": ["word " * int(n) for n in words]}
    del texts[side][gap]
    for name, its in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in its), encoding="utf-8")
    counts = {"src": (299, 300), "tgt": (300, 299)}[side]
    told = rf"has {counts[0]} lines and .* has {counts[1]}"
    with pytest.raises(UserError, match=told) as error:
        check_aligned(tmp_path / "src", tmp_path / "tgt")
    place = int(str(error.value).split("near line ")[1].split(";")[0])
    assert abs(place - (gap + 1)) <= 2


def test_the_drift_is_found_though_lengths_are_noisy() -> None:
    chance = np.random.default_rng(1)
    tgt = chance.gamma(2, 15, 2000) + 3
    src = tgt / 3 * chance.lognormal(0, 0.3, 2000)
    for gap in (0, 700, 1400):
        assert abs(drift_line(np.delete(src, slice(gap, gap + 3)), tgt) - gap) <= 25


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.jsonl", '{"zh": "好", "en": "good"}\nnot json\n', "line 2 is not JSON"),
        ("a.jsonl", "[1, 2]\n", "line 1 is not a JSON object"),
        (
            "a.jsonl",
            '{"zh": "好", "eng": "good"}\n',
            "no column 'en'.*did you mean 'eng'.*columns are zh, eng",
        ),
        ("a.tsv", "no tab here\n", "line 1 has no tab"),
        ("a.txt", "好\tgood\n", "no known kind"),
        ("a.parquet", "PAR0", "as parquet"),
        ("a.jsonl.gz", "not packed", "cannot read"),
        ("a.jsonl.zst", "not packed", "cannot read"),
    ],
)
def test_files_that_cannot_be_read_are_refused_in_one_line(
    tmp_path: Path, name: str, content: str, told: str
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=told) as error:
        read(CorpusConfig(path=str(tmp_path / name)))
    assert "\n" not in str(error.value)


def test_a_packed_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"{a}\t{b}\n" for a, b in PAIRS).encode())
    (tmp_path / "a.tsv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cannot read"):
        read(CorpusConfig(path=str(tmp_path / "a.tsv.gz")))


def test_a_file_in_utf16_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes("好\tgood\n".encode("utf-16"))
    with pytest.raises(UserError, match="is UTF-16"):
        read(CorpusConfig(path=str(tmp_path / "a.tsv")))


def test_a_wrong_column_names_the_columns_there_are(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "corpus", {"train": [translation(*pair) for pair in ROWS]})
    with pytest.raises(UserError, match=r"no column 'de'.*columns are zh, en"):
        read(CorpusConfig(path=str(folder)), tgt="de")
    path = write_tsv(tmp_path / "a.tsv", [("chinese", "english"), *ROWS])
    with pytest.raises(UserError, match=r"no column 'chinse'.*did you mean 'chinese'"):
        read(CorpusConfig(path=str(path), src_column="chinse", tgt_column="english"))
    pq.write_table(pa.table({"zh": ["好"], "en": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="'en' holds int64, not text"):
        read(CorpusConfig(path=str(tmp_path / "a.parquet")))


def test_zst_without_zstandard_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "a.tsv", "好\tgood\n".encode(), ".zst")
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(UserError, match=r"pip install -e '.\[zst\]'"):
        read(CorpusConfig(path=str(path)))


def test_an_endless_line_of_json_is_one_row_too_long_and_not_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    endless = json.dumps({"zh": "好" * (LINE_LIMIT // 2), "en": "x"}, ensure_ascii=False)
    path.write_text(f'{endless}\n{{"zh": "好", "en": "good"}}\n', encoding="utf-8")
    first, second = read(CorpusConfig(path=str(path)))
    assert len(first[0]) > MAX_CHARS
    assert second == ("好", "good")


def test_references_that_are_no_list_of_texts_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"zh": "好", "en": "good", "references": "good"}\n{"zh": "是", "en": "yes", "references": [1]}\n'
    )
    assert read(CorpusConfig(path=str(path))) == [("好", "good"), ("是", "yes")]

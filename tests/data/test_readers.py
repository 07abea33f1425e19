"""Corpus files: rows of every format, and errors with the file and the next step."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dragoman.config import CorpusConfig
from dragoman.data.readers import NotFoundError, Rows, find, locate
from dragoman.errors import UserError

SRC, TGT = ["你好。", "再见\u2028吧。"], ["Hello.", "Good\rbye."]
FLAT = [{"zh": zh, "en": en} for zh, en in zip(SRC, TGT, strict=True)]
Write = Callable[..., str]


def read(*, src: str = "zh", tgt: str = "en", root: str | None = None, **entry: object) -> dict[str, list[Rows]]:
    return {split: list(rows) for split, rows in find(CorpusConfig(**entry), src, tgt, root).open().items()}


def test_two_aligned_files(write: Write) -> None:
    rows = read(src_path=write("a.zh.gz", SRC), tgt_path=write("a.en", TGT))["train"]
    assert rows == [Rows(SRC, TGT)]


def test_a_tsv_file_with_and_without_a_header(write: Write) -> None:
    table = [("en", "id", "zh"), *((en, "1", zh) for zh, en in zip(SRC, TGT, strict=True))]
    assert read(path=write("a.tsv.gz", list(zip(SRC, TGT, strict=True))))["train"] == [Rows(SRC, TGT)]
    assert read(path=write("b.tsv", table))["train"] == [Rows(SRC, TGT)]
    renamed = write("c.tsv", [("target", "id", "source"), *table[1:]])
    assert read(path=renamed, src_column="source", tgt_column="target")["train"] == [Rows(SRC, TGT)]
    for first in ("EN", "id", "Chinese"), ("en-US", "ID", "zh_CN"):
        assert read(path=write("d.tsv", [first, *table[1:]]))["train"] == [Rows(SRC, TGT)]
    with pytest.raises(UserError, match=r"no column 'en' \(found englisch, id, zh\)"):
        read(path=write("e.tsv", [("englisch", "id", "zh"), *table[1:]]))
    with pytest.raises(UserError, match=r"no column 'source' \(found 你, you\)"):
        read(path=write("f.tsv", ["你\tyou"]), src_column="source")


def test_a_missing_cell_is_an_empty_text(write: Write) -> None:
    assert read(path=write("a.tsv", ["你\tyou", "我", ""]))["train"][0].tgt == ["you", "", ""]


@pytest.mark.parametrize("rows", [FLAT, [{"translation": row} for row in FLAT]], ids=["flat", "translation"])
def test_a_jsonl_file(write: Write, rows: list[dict]) -> None:
    path = write("a.jsonl.gz", [rows[0], "", rows[1] | {"references": [TGT[1], "Bye."]}])
    assert read(path=path)["train"] == [Rows(SRC, TGT, [[], [TGT[1], "Bye."]])]


def test_an_empty_jsonl_file_has_no_rows(write: Write) -> None:
    assert read(path=write("a.jsonl", b""))["train"] == []


@pytest.mark.parametrize("nested", [False, True])
def test_a_parquet_file(tmp_path: Path, nested: bool) -> None:
    table = pa.table({"zh": SRC, "en": [TGT[0], None], "references": [["Hello."], None]})
    if nested:
        pairs = [{"zh": row["zh"], "en": row["en"]} for row in table.to_pylist()]
        table = pa.table({"translation": pairs, "references": table["references"]})
    pq.write_table(table, tmp_path / "a [1]*.parquet")
    rows = read(path=str(tmp_path / "a [1]*.parquet"))["train"]
    assert rows == [Rows(SRC, [TGT[0], ""], [["Hello."], []])]


TMX = """<?xml version="1.0"?><tmx version="1.4"><header/><body>
<tu><tuv xml:lang="zh-CN"><seg><bpt>&lt;b&gt;</bpt>你<hi>好</hi><ept>&lt;/b&gt;</ept>。</seg></tuv>
<tuv xml:lang="EN-us"><seg>Hello.</seg></tuv></tu>
<tu><tuv xml:lang="de"><seg>Ja</seg></tuv><tuv xml:lang="zh"><seg>是</seg></tuv></tu>
</body></tmx>"""


def test_a_translation_memory(write: Write) -> None:
    assert read(path=write("a.tmx.gz", TMX.encode()))["train"] == [Rows(["你好。"], ["Hello."])]
    both = TMX.replace('<tuv xml:lang="EN', '<tuv xml:lang="ZH-TW"><seg>您好。</seg></tuv><tuv xml:lang="EN')
    for code, text in (("zh", "你好。"), ("zh_Hant", "您好。")):
        assert read(path=write("c.tmx", both.encode()), src=code)["train"][0].src == [text]
    with pytest.raises(UserError, match=r"no column 'fr'.*\(found de, en, zh\)"):
        read(path=write("a.tmx", TMX.encode()), tgt="fr")
    for damaged in (TMX[:-9], TMX.replace("seg>", "s>")):
        with pytest.raises(UserError, match=r"b\.tmx: cannot be read as \.tmx"):
            read(path=write("b.tmx", damaged.encode()))


def test_local_files_need_no_network(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("network")

    monkeypatch.setattr("socket.socket.connect", fail)
    monkeypatch.setattr("socket.getaddrinfo", fail)
    pq.write_table(pa.table({"zh": SRC, "en": TGT}), tmp_path / "a.parquet")
    assert read(path=str(tmp_path / "a.parquet"))["train"][0].src == SRC
    assert read(path=write("a.jsonl", FLAT))["train"][0].src == SRC


def test_the_copy_task_has_equal_sides_in_every_run() -> None:
    rows = read(path="copy", src="a", tgt="b")["train"]
    assert sum(len(chunk.src) for chunk in rows) == 20_000
    assert all(chunk.src == chunk.tgt for chunk in rows)
    assert rows == read(path="copy", src="a", tgt="b")["train"]


def test_equal_keys_mean_unchanged_files(write: Write) -> None:
    def key(**options: str) -> str:
        return find(CorpusConfig(path=path, **options), "zh", "en").key

    path = write("a.jsonl", FLAT)
    before = key()
    assert key() == before
    assert key(split="test") != before
    assert key(src_column="x") != before
    os.utime(path, (1, 1))  # another text of equal size
    assert key() != before
    write("a.jsonl", [*FLAT, FLAT[0]])
    assert key() != before


def test_a_very_long_line_is_cut(write: Write) -> None:
    path = write("a.tsv", ["你\tyou", "我" * 3_000_000 + "\tI"])
    rows = read(path=path)["train"][0]
    assert list(map(len, rows.src)) == [1, 10_001]
    long = read(path=write("a.jsonl", [{"zh": "我" * 200_000, "en": "I"}, FLAT[0]]))["train"][0]
    assert list(map(len, long.src)) == [10_001, 3]


def test_a_path_is_searched_in_three_places(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = Path(write("corpora/a.tsv", ["你\tyou"]))
    monkeypatch.chdir(tmp_path)
    assert locate("corpora/a.tsv").samefile(path)
    assert locate("a.tsv", str(path.parent)) == path
    monkeypatch.setenv("DRAGOMAN_DATA", str(path.parent))
    assert locate("a.tsv") == path
    assert locate("data/phrasebook").is_dir()


def test_a_missing_file_fails_with_the_places_and_a_suggestion(write: Write, tmp_path: Path) -> None:
    write("tatoeba.tsv", ["你\tyou"])
    with pytest.raises(NotFoundError, match=r"no 'tatoba.tsv' \(did you mean 'tatoeba.tsv'\?\); searched /.*/tatoba"):
        find(CorpusConfig(path="tatoba.tsv"), "zh", "en", str(tmp_path))
    with pytest.raises(NotFoundError, match="DRAGOMAN_DATA can name a folder"):
        find(CorpusConfig(path="corpora/tatoba.tsv"), "zh", "en")


def test_unequal_line_counts_fail_with_the_next_step(write: Write) -> None:
    paths = {"src_path": write("a.zh", SRC), "tgt_path": write("a.en", [*TGT, "more"])}
    with pytest.raises(UserError, match=r"a\.en: not aligned .*found 3 and 2 lines.* scripts/doctor.py --src-path"):
        read(**paths)
    unchecked = find(CorpusConfig(**paths), "zh", "en", check_lines=False)
    assert list(unchecked.open()["train"]) == [Rows(SRC, TGT)]


def test_a_bad_file_fails_in_one_line(write: Write) -> None:
    chinese = "你\tyou\n".encode
    jsonl = '{"zh": "你", "en": "you"}\n'.encode("gb18030")
    for name, content, message in (
        ("a.csv", ["a,b"], r"a\.csv: no reader for '\.csv' files.*\.tsv, \.jsonl, \.parquet"),
        ("a.tsv", ["no tab"], r"a\.tsv: no tab in line 1"),
        ("b.tsv", chinese("utf-16"), r"b\.tsv: not UTF-8.*iconv -t UTF-8 -f .*UTF-16"),
        ("c.tsv", chinese("gb18030") * 20, r"c\.tsv: not UTF-8.*iconv -t UTF-8 -f GB18030"),
        ("a.jsonl", [*FLAT, "{"], r"a\.jsonl: cannot be read as \.jsonl"),
        ("b.jsonl", jsonl, r"b\.jsonl: cannot be read as \.jsonl \('utf-8' codec"),
        ("c.jsonl", [*FLAT, '{"zh": 1, "en": "I"}'], r"c\.jsonl: column 'zh' is .*, not text"),
        ("d.jsonl", [FLAT[0] | {"references": ["I", 3]}], r"d\.jsonl: column 'references' is .*: lists of text"),
        ("e.jsonl", [{"cn": "我", "en": "I"}], r"no column 'zh'.*\(found cn, en\).*Set data.src and"),
        ("f.jsonl", [{"translation": {"zh": "我"}}], r"f\.jsonl: no column 'en' \(found zh\)"),
        ("g.jsonl", [FLAT[0] | {"translation": FLAT[0]}], r"g\.jsonl: cannot be read as \.jsonl"),
        ("a.parquet", b"no parquet", r"a\.parquet: cannot be read as \.parquet"),
    ):
        with pytest.raises(UserError, match=message) as error:
            read(path=write(name, content))
        assert "\n" not in str(error.value)


def test_a_damaged_gz_file_fails(tmp_path: Path) -> None:
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"some text")[:-9])
    with pytest.raises(UserError, match=r"a\.tsv\.gz: cannot be read"):
        read(path=str(tmp_path / "a.tsv.gz"))

"""Every kind of bad corpus goes through the whole preparation: refused naming the file, or repaired and counted.

Two numbers come of it, kinds caught and kinds tried: run with -s to see them. A kind is caught when its case passes:
no crash, no endless wait, nothing wrong that nobody was told of, and what is sound in the corpus is kept.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bad_files import (
    GOOD,
    LINE,
    bz2_bomb_in_a_folder,
    device,
    gz_bomb,
    gz_bomb_in_a_folder,
    jsonl,
    of_a_folder,
    of_aligned,
    packed_empty,
    pipe,
    symlink_loop,
    whole,
    zip_bomb,
    zst_bomb,
)
from corpora import translation, write_folder, write_tsv
from dragoman.data import readers
from dragoman.data.cleaning import COPY, DUPLICATE, EMPTY, HTML, LEAK, TOO_LONG, WRONG_SCRIPT
from dragoman.data.corpus import CorpusConfig, clean_text
from dragoman.data.datamodule import TranslationData
from dragoman.data.tokenizer import TokenizerConfig
from dragoman.errors import UserError

Prepare = Callable[..., TranslationData]


@dataclass
class Case:
    """A pair that stands among good ones, as bytes of its line in a TSV, and what must become of it."""

    line: str | bytes
    mended: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    becomes: tuple[str, str] | None = None  # what the model will see; None: the pair is gone


SEEN: set[str] = set()
SCHOOL = ("我去学校。", "I go to school.")
GONE = {"invalid UTF-8": 1}
CUT = ("我去学校。", "I go \ufffd")
WITHIN = {
    "NUL": Case("我去\x00学校。\tI go to\x00 school.", {"NUL": 2}, becomes=SCHOOL),
    "CRLF": Case("我去学校。\tI go to school.\r", {"carriage return": 1}, becomes=SCHOOL),
    "lone CR": Case("我去学校。\tI go\rto school.", {"carriage return": 1}, becomes=SCHOOL),
    "U+2028": Case("我去学校。\tI go\u2028to school.", {"line separator": 1}, becomes=SCHOOL),
    "U+0085": Case("我去学校。\tI go\x85to school.", {"line separator": 1}, becomes=SCHOOL),
    "overlong UTF-8": Case("我去学校。\tI go ".encode() + b"\xc0\xaf", GONE, becomes=CUT),
    "surrogate in UTF-8": Case("我去学校。\tI go ".encode() + b"\xed\xa0\x80", GONE, becomes=CUT),
    "one line of GB18030": Case("我去学校。".encode("gb18030") + b"\tI go to school.", GONE, {WRONG_SCRIPT: 1}),
    "a million characters": Case("我" * 1_000_000 + "\tI", dropped={TOO_LONG: 1}),
    "empty side": Case("\tI go to school.", dropped={EMPTY: 1}),
    "no tab": Case("我去学校。", dropped={EMPTY: 1}),
    "blank line": Case("", dropped={EMPTY: 1}),
    "swapped languages": Case("I go to school.\t我去学校。", dropped={WRONG_SCRIPT: 1}),
    "source equals target": Case("I go to school.\tI go to school.", dropped={WRONG_SCRIPT: 1}),
    "HTML entities": Case("我&amp;你&#65281;\tyou &amp; I&#33;", {HTML: 2}, becomes=("我&你！", "you & I!")),
    "control characters": Case("我\x07去。\tI \x1bgo.", {"control character": 2}, becomes=("我去。", "I go.")),
    "zero-width characters": Case("我\u200b去。\tI \u2060go.", {"control character": 2}, becomes=("我去。", "I go.")),
    "bidi characters": Case("我去。\t\u202eI go.\u202c", {"control character": 1}, becomes=("我去。", "I go.")),
    "emoji": Case("我去👩‍👩‍👧。\tI go 🦖.", becomes=("我去👩‍👩‍👧。", "I go 🦖.")),
    "rare hanzi": Case("我去𠮷野家。\tI go to 𠮷.", dropped={WRONG_SCRIPT: 1}),
    "hanzi of extension B": Case("我去𠮷野家。\tI go to Yoshinoya.", becomes=("我去𠮷野家。", "I go to Yoshinoya.")),
    "full-width digits": Case("我有２５本书。\tI have 25 books.", becomes=("我有２５本书。", "I have 25 books.")),
    "special tokens": Case("我<s>去</s>。\tI <pad> go </s>", becomes=("我<s>去</s>。", "I <pad> go </s>")),
    "mark of sentencepiece": Case("我▁去。\tI▁go.", {"mark of sentencepiece": 2}, becomes=("我_去。", "I_go.")),
    "heap of marks": Case(
        "我去学校。\tI go" + "\u0315\u0300" * 4000 + " to school.",
        {"heap of marks": 1, "not NFC": 1},
        becomes=("我去学校。", "I gò" + "\u0300" * 14 + "\u0315" * 15 + " to school."),
    ),
    "duplicate": Case("\t".join(GOOD[7]), dropped={DUPLICATE: 1}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def told(request: pytest.FixtureRequest) -> Iterator[None]:
    """Count each kind that was tried and, since pytest would say otherwise, caught."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed == failed:
        SEEN.add(request.node.name)


@pytest.fixture
def prepare(prepared: Prepare) -> Prepare:
    """With validation and test cut nowhere, so that each pair stays in train."""

    def without_cuts(*corpora: CorpusConfig, **options: object) -> TranslationData:
        options = {"validation_size": 0, "test_size": 0, "max_ratio": 0} | options
        return prepared(*corpora, **options)

    return without_cuts


def seen(data: TranslationData) -> list[tuple[str, str]]:
    """The training pairs as the model sees them."""
    src, tgt = data.prepared.train_ids()
    decode = data.src_tokenizer.decode
    return [(decode(src[i].tolist()), decode(tgt[i].tolist())) for i in range(len(src))]


def tsv(path: Path, line: bytes, at: int = LINE) -> CorpusConfig:
    lines = [f"{src}\t{tgt}".encode() for src, tgt in GOOD]
    lines[at:at] = [line]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return CorpusConfig(path=str(path))


@pytest.mark.parametrize("kind", WITHIN)
def test_a_bad_pair_among_good_ones_is_mended_or_dropped_and_counted(
    kind: str, prepare: Prepare, tmp_path: Path
) -> None:
    case = WITHIN[kind]
    line = case.line if isinstance(case.line, bytes) else case.line.encode()
    data = prepare(tsv(tmp_path / "a.tsv", line))
    assert data.report["mended"] == case.mended
    assert data.report["dropped"].get("train", {}) == case.dropped
    assert data.report["read"] == {"train": len(GOOD) + 1}
    others = [pair for pair in seen(data) if pair != case.becomes]
    assert sorted(others) == sorted(pair for pair in GOOD if pair != case.becomes)
    assert (case.becomes in seen(data)) == (case.becomes is not None)


@pytest.mark.parametrize("at", [0, LINE, len(GOOD)], ids=["start", "middle", "end"])
@pytest.mark.parametrize("side", [0, 1], ids=["source", "target"])
def test_unequal_line_counts_are_refused_with_file_and_line(
    at: int, side: int, prepare: Prepare, tmp_path: Path
) -> None:
    # Lengths by which a line can be told from its neighbours, as in real text.
    columns = [
        ["字" * (1 + i * 37 % 23) for i in range(200)],
        ["word " * (1 + i * 37 % 23) for i in range(200)],
    ]
    columns[side].insert(at, "x" * 60)
    for column, name in zip(columns, ("a.zh", "a.en"), strict=True):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in column), encoding="utf-8")
    with pytest.raises(
        UserError, match=r"a\.zh has .* lines and .*a\.en has .* drift near line \d+"
    ) as error:
        prepare(CorpusConfig(src_path=str(tmp_path / "a.zh"), tgt_path=str(tmp_path / "a.en")))
    assert abs(int(str(error.value).split("near line ")[1].split(";")[0]) - (at + 1)) <= 1


TSV = "".join(f"{src}\t{tgt}\n" for src, tgt in GOOD)
REFUSED = {
    "UTF-16": (whole(TSV.encode("utf-16")), "a.tsv is UTF-16"),
    "UTF-16, big-endian": (whole(b"\xfe\xff" + TSV.encode("utf-16-be")), "a.tsv is UTF-16"),
    "UTF-32": (whole(TSV.encode("utf-32")), "a.tsv is UTF-32; convert it: iconv -f UTF-32"),
    "UTF-32, big-endian": (whole(b"\x00\x00\xfe\xff" + TSV.encode("utf-32-be")), "a.tsv is UTF-32"),
    "CR line ends": (
        whole(TSV.replace("\n", "\r").encode()),
        r"a.tsv ends its lines by CR alone.*tr '\\r' '\\n'",
    ),
    "aligned files of CR line ends": (of_aligned("x\r" * 50), "a.zh ends its lines by CR alone"),
    "a list for a text": (
        jsonl('{"zh": ["我"], "en": "I"}'),
        "a.jsonl, line 121: 'zh' holds a list, not text",
    ),
    "an object for a text": (
        jsonl('{"zh": "我", "en": {"text": "I"}}'),
        "line 121: 'en' holds an object, not text",
    ),
    "a number for a text": (jsonl('{"zh": "我", "en": 1}'), "line 121: 'en' holds a number, not text"),
    "zero for a text": (jsonl('{"zh": 0, "en": "I"}'), "line 121: 'zh' holds a number, not text"),
    "false for a text": (jsonl('{"zh": "我", "en": false}'), "line 121: 'en' holds true or false, not text"),
    "six thousand digits": (jsonl('{"zh": %s, "en": "I"}' % ("9" * 6000)), "line 121: 'zh' holds a number"),
    "text for a translation": (
        jsonl('{"translation": "我"}'),
        "line 121: 'translation' holds text, not an object",
    ),
    "null for a translation": (
        jsonl('{"translation": null}'),
        "line 121: 'translation' holds null, not an object",
    ),
    "a key twice": (jsonl('{"zh": "我", "en": "I", "zh": "你"}'), "line 121: the key 'zh' is there twice"),
    "a list in a folder": (
        jsonl('{"zh": ["我"], "en": "I"}', "corpus/train.jsonl"),
        "line 121: 'zh' holds a list",
    ),
    "GB18030 throughout": (whole(TSV.encode("gb18030")), "a.tsv, lines 1 to 200: .*not UTF-8.*iconv"),
    "empty file": (whole(b""), r"a\.tsv after cleaning: none was read"),
    "empty folder of files": (packed_empty, "empty after cleaning: none was read"),
    "empty aligned files": (of_aligned(""), r"a\.zh \+ .*a\.en after cleaning: none was read"),
    "only blank lines": (whole(b"\n\n\n"), r"a\.tsv, line 1 has no tab"),
    "only blank aligned lines": (of_aligned("\n" * 50), r"a\.zh \+ .*a\.en after cleaning: empty 50"),
    "swapped throughout": (whole("".join(f"{b}\t{a}\n" for a, b in GOOD).encode()), "a.tsv.*right way round"),
    "gz bomb": (gz_bomb, "a.tsv.gz unpacks to more than"),
    "zst bomb": (zst_bomb, "a.tsv.zst unpacks to more than"),
    "gz bomb in a folder": (gz_bomb_in_a_folder, "train.jsonl.gz unpacks to more than"),
    "bz2 bomb in a folder": (bz2_bomb_in_a_folder, "train.jsonl.bz2 unpacks to more than"),
    "zip bomb": (zip_bomb, "train.zip is of no known kind"),
    "pipe": (pipe, "x.tsv is not a regular file"),
    "device": (device, "x.tsv is not a regular file"),
    "README naming a file outside": (
        of_a_folder("../outside.jsonl"),
        "README.md: its configs name '../outside.jsonl'",
    ),
    "README naming a hidden file": (
        of_a_folder(".hidden.jsonl"),
        "README.md: its configs name '.hidden.jsonl'",
    ),
    "README naming an address": (
        of_a_folder("http://127.0.0.1:9/x.jsonl"),
        "README.md: its configs name 'http:",
    ),
    "link out of a folder": (of_a_folder("test.jsonl", link=True), "test.jsonl is a link that leads out"),
    "symlink loop": (symlink_loop, "no corpus '.*loop.tsv'"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_corpus_that_is_bad_throughout_is_refused_by_name(
    kind: str, prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "BOMB_BYTES", 2**23)
    write, message = REFUSED[kind]
    with pytest.raises(UserError, match=message) as error:
        prepare(write(tmp_path))
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache").glob("texts-*"))


def test_null_is_an_empty_side_and_counted(prepare: Prepare, tmp_path: Path) -> None:
    for row in ('{"zh": null, "en": "I"}', '{"translation": {"zh": "我", "en": null}}'):
        data = prepare(jsonl(row)(tmp_path))
        assert data.report["dropped"]["train"] == {EMPTY: 1}
        assert sorted(seen(data)) == sorted(GOOD)


def test_a_byte_order_mark_at_the_head_of_a_file_is_removed(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"\xef\xbb\xbf" + TSV.encode())
    data = prepare(CorpusConfig(path=str(tmp_path / "a.tsv")))
    assert data.report["mended"] == {"byte order mark": 1}
    assert sorted(seen(data)) == sorted(GOOD)


def test_a_missing_final_newline_loses_no_pair(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(TSV.rstrip("\n").encode())
    assert sorted(seen(prepare(CorpusConfig(path=str(tmp_path / "a.tsv"))))) == sorted(GOOD)


def test_copies_between_two_languages_of_one_script_are_dropped(prepare: Prepare, tmp_path: Path) -> None:
    pairs = [(f"Haus {i}", f"house {i}") for i in range(50)]
    path = write_tsv(tmp_path / "a.tsv", [*pairs, ("Taxi", "Taxi")])
    data = prepare(CorpusConfig(path=str(path)), src="de", tgt="en")
    assert data.report["dropped"]["train"] == {COPY: 1}


def test_a_mix_of_scripts_is_converted_and_counted_where_that_was_asked_for(
    prepare: Prepare, tmp_path: Path
) -> None:
    pytest.importorskip("opencc")
    path = write_tsv(tmp_path / "a.tsv", [*GOOD, ("這個國家", "This country")])
    kept = prepare(CorpusConfig(path=str(path)))
    assert ("這個國家", "This country") in seen(kept)
    data = prepare(CorpusConfig(path=str(path)), script="hans", run="other")
    assert data.report["mended"] == {"converted to hans": 1}
    assert ("这个国家", "This country") in seen(data)


def test_pairs_of_test_are_kept_out_of_train(prepare: Prepare, tmp_path: Path) -> None:
    rows = {
        "train": [translation(*pair) for pair in GOOD],
        "test": [translation(*pair) for pair in GOOD[5:9]],
    }
    data = prepare(CorpusConfig(path=str(write_folder(tmp_path / "corpus", rows))))
    assert data.report["dropped"]["train"] == {LEAK: 4}
    assert not set(seen(data)) & set(GOOD[5:9])


def test_a_folder_that_holds_itself_by_a_link_is_read_once(prepare: Prepare, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "corpus", {"train": [translation(*pair) for pair in GOOD]})
    (folder / "again").symlink_to(folder)
    assert sorted(seen(prepare(CorpusConfig(path=str(folder))))) == sorted(GOOD)


def test_a_corpus_removed_once_it_is_prepared_is_no_longer_needed(prepare: Prepare, tmp_path: Path) -> None:
    path = write_tsv(tmp_path / "a.tsv", GOOD)
    data = prepare(CorpusConfig(path=str(path)))
    path.unlink()
    assert sorted(seen(data)) == sorted(GOOD)
    with pytest.raises(UserError, match=r"no corpus '.*a\.tsv'"):
        prepare(CorpusConfig(path=str(path)), run="other")


def test_a_corpus_removed_while_it_is_read_is_told(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tsv(tmp_path / "a.tsv", GOOD)
    count = readers.count_lines
    monkeypatch.setattr("dragoman.data.sources.count_lines", lambda file: (count(file), file.unlink())[0])
    with pytest.raises(UserError, match=r"cannot read .*a\.tsv: No such file"):
        prepare(CorpusConfig(path=str(path)))


def test_a_hundred_thousand_copies_of_one_pair_are_one_pair(prepare: Prepare, tmp_path: Path) -> None:
    n = 100_000
    data = prepare(
        CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", [*GOOD, *[("同一句。", "The same.")] * n])))
    )
    assert data.report["dropped"]["train"] == {DUPLICATE: n - 1}
    assert len(seen(data)) == len(GOOD) + 1


@pytest.mark.slow
def test_a_million_copies_of_one_pair_are_one_pair(prepare: Prepare, tmp_path: Path) -> None:
    n = 1_000_000
    data = prepare(
        CorpusConfig(path=str(write_tsv(tmp_path / "a.tsv", [*GOOD, *[("同一句。", "The same.")] * n])))
    )
    assert data.report["dropped"]["train"] == {DUPLICATE: n - 1}


def test_an_entity_is_no_entity_without_its_semicolon_and_none_that_people_type_is_touched(
    prepare: Prepare, tmp_path: Path
) -> None:
    pair = ("网址?a=1&copy=2", "AT&T &unknown; R&D;")
    data = prepare(
        tsv(tmp_path / "a.tsv", "\t".join(pair).encode()), tokenizer=TokenizerConfig(vocab_size=400)
    )
    assert pair in seen(data)
    assert clean_text("&amp;") == "&amp;"


def test_the_kinds_caught_are_told(request: pytest.FixtureRequest) -> None:
    here = [item.name for item in request.session.items if item.path == request.node.path]
    tried = [name for name in here if name != request.node.name and name in SEEN | set(here)]
    print(f"\nkinds of bad corpora: {len(SEEN)} caught of {len(tried)} tried")
    print(json.dumps(sorted(set(tried) - SEEN)))
    assert set(tried) >= SEEN

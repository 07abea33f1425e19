"""Text files of word vectors: what is read from them, what is refused, and which piece finds which word."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dragoman import vectors
from dragoman.errors import UserError
from dragoman.special import EOS, PAD

FLOATS = st.floats(-(2.0**99), 2.0**99, width=32)
WORDS = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1)
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]  # as the vocabularies begin
PIECES = [*SPECIAL, "▁The", "ing", "▁king", "国王", "▁国王", "3", ",", "▁", "<0xE4>", "Ä"]


def save(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def covered(path: Path, pieces: list[str]) -> dict[str, list[float]]:
    """piece -> the vector that it finds."""
    ids, found = vectors.match(pieces, vectors.read(path, wanted=vectors.all_spellings(pieces)))
    return {pieces[i]: row for i, row in zip(ids.tolist(), found.tolist(), strict=True)}


@given(
    words=st.lists(WORDS, min_size=1, max_size=8, unique=True),
    matrix=arrays(np.float32, (8, 5), elements=FLOATS),
)
def test_what_is_written_is_read_again_exactly(tmp_path_factory, words, matrix) -> None:
    path, matrix = tmp_path_factory.mktemp("vectors") / "vectors.txt", matrix[: len(words)]
    with path.open("wb") as file:
        vectors.write(file, words, matrix)
    read = vectors.read(path)
    assert list(read.rows) == words
    assert np.array_equal(read.matrix, matrix)
    assert vectors.layout(path) == (len(words), 5)


def test_plain_or_zipped_with_a_first_line_or_without_it_is_the_same_file(tmp_path: Path) -> None:
    lines = "king 1 2 3 \nqueen 4 5 6 \r\n\n"  # word2vec and fastText end their lines with a space
    glove, word2vec = save(tmp_path / "glove.txt", lines), save(tmp_path / "word2vec.txt", "2 3\n" + lines)
    zipped = save(tmp_path / "fasttext.vec.gz", gzip.compress(word2vec.read_bytes()))
    for path in (glove, word2vec, zipped):
        read = vectors.read(path)
        assert list(read.rows) == ["king", "queen"]
        assert read.matrix.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_only_wanted_words_are_kept_and_only_as_many_lines_read_as_asked(tmp_path: Path) -> None:
    path = save(tmp_path / "v.txt", "a 1 2\nb 3 4\nc 5 6\n")
    assert vectors.read(path, wanted={"b", "x"}).matrix.tolist() == [[3, 4]]
    assert vectors.read(path, wanted=set()).matrix.shape == (0, 2)
    assert list(vectors.read(path, most=2).rows) == ["a", "b"]


def test_words_may_hold_spaces_of_any_kind_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = save(
        tmp_path / "v.txt", "a 1 2\n. . . 3 4\n1\u00a01/2 5 6\nx\u2028y 7 8\n".encode() + b"\xff\xfe 9 9\n"
    )
    read = vectors.read(path)
    assert list(read.rows) == ["a", ". . .", "1\u00a01/2", "x\u2028y", "\ufffd\ufffd"]
    assert read.matrix.shape == (5, 2)


def test_of_a_word_that_comes_twice_the_first_counts(tmp_path: Path) -> None:
    read = vectors.read(save(tmp_path / "v.txt", "a 1 2\nb 3 4\na 5 6\n"))
    assert (read.matrix[read.rows["a"]].tolist(), read.n_duplicates) == ([1, 2], 1)


def test_a_file_of_words_covers_what_is_a_word_by_itself(tmp_path: Path) -> None:
    path = save(tmp_path / "v.txt", "the 1\nking 2\ning 3\n国王 4\n3 5\n, 6\n</s> 7\n<unk> 8\nÄ 9\n")
    found = covered(path, PIECES)
    assert found == {"▁The": [1], "▁king": [2], "国王": [4], "▁国王": [4], "3": [5], ",": [6]}


def test_as_it_stands_comes_before_lower_case(tmp_path: Path) -> None:
    path = save(tmp_path / "v.txt", "may 1\nMay 2\n")
    assert covered(path, ["▁May", *SPECIAL[1:], "▁may", "▁MAY"]) == {"▁may": [1], "▁MAY": [1]}  # id 0 is PAD
    assert covered(path, [*SPECIAL, "▁May"]) == {"▁May": [2]}


def test_a_file_of_pieces_covers_equal_pieces_only(tmp_path: Path) -> None:
    path = save(tmp_path / "v.txt", "▁the 1\nking 2\ning 3\n国王 4\n▁ 5\n<0xE4> 6\n</s> 7\n▁The 8\n")
    assert covered(path, PIECES) == {"▁The": [8], "ing": [3], "国王": [4], "▁": [5], "<0xE4>": [6]}


def test_a_stray_mark_does_not_make_a_file_of_words_one_of_pieces(tmp_path: Path) -> None:
    words = "".join(f"word{n} 1\n" for n in range(3000))
    path = save(tmp_path / "v.txt", words + "▁▁▁ 1\n▁ 1\n▁x 1\nking 2\n")
    assert covered(path, PIECES) == {"▁king": [2]}


@given(pieces=st.lists(st.text("▁aB国3,", max_size=4), max_size=12))
def test_no_piece_of_a_vocabulary_is_found_twice_and_the_special_ones_never(tmp_path_factory, pieces) -> None:
    words = {word: row for row, word in enumerate(sorted(vectors.all_spellings(pieces)))}
    matrix = np.arange(len(words), dtype=np.float32)[:, None]
    for marked in (True, False):
        known = vectors.WordVectors(rows=words, matrix=matrix, marked=marked, n_duplicates=0)
        ids, found = vectors.match(pieces, known)
        assert np.all(np.diff(ids) > 0)
        assert not np.any((ids >= PAD) & (ids <= EOS))
        assert found.shape == (len(ids), 1)
        if marked:
            assert set(ids.tolist()) == set(range(EOS + 1, len(pieces)))


BROKEN = {
    "nothing in it": (b"", "is empty"),
    "a first line only": (b"0 3\n", "holds no vectors"),
    "no numbers": (b"once upon a time\nthere was", "line 1 has no numbers"),
    "a number too few": (b"a 1 2 3\nb 4 5\n", "line 2 has 2 numbers, line 1 makes it 3"),
    "a number too many": (b"a 1 2 3\nb 4 5 6 7\n", "line 2 has 4 numbers, line 1 makes it 3"),
    "another dimension than promised": (
        b"2 2\na 1 2 3\nb 4 5 6\n",
        "line 2 has 3 numbers, line 1 makes it 2",
    ),
    "not a number": (b"a 1 2 3\nb 4 5,5 6\n", "line 2: '5,5' is not a finite number"),
    "not a number at all": (b"a 1 2 3\nb 4 nan 6\n", "line 2: 'nan' is not a finite number"),
    "infinite": (b"a 1 2 3\nb 4 5 -inf\n", "line 2: '-inf' is not a finite number"),
    "too large": (b"a 1 2 3\nb 4 1e40 6\n", "line 2: '1e40' is not a finite number"),
    "cut off": (b"3 2\na 1 2\nb 3 4\n", "has 2 words, its first line says 3"),
    "longer than promised": (b"1 2\na 1 2\nb 3 4\n", "make the first line '2 2'"),
    "binary": (b"2 2\na " + np.array([1.5, 2], np.float32).tobytes(), "is not text"),
    "an archive": (b"PK\x03\x04" + bytes(40), "unpack"),
    "zipped and cut off": (gzip.compress(b"a 1 2\n" * 99)[:-9], "damaged or cut off"),
    "zipped and damaged": (gzip.compress(b"a 1 2\n" * 99)[:12] + b"xxxxxxxxxxxxx", "damaged or cut off"),
}


@pytest.mark.parametrize(("content", "complaint"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_one_line_that_says_where(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = save(tmp_path / "broken.txt", content)
    with pytest.raises(UserError) as refused:
        vectors.read(path)
    assert complaint in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["missing.txt", "."])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot read word vectors"):
        vectors.layout(tmp_path / name)

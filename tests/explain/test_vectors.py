"""Word vectors of every format in the embeddings, and errors for broken files."""

import gzip

import numpy as np
import pytest
import torch

from dragoman.errors import UserError
from dragoman.explain.vectors import read_vectors, start_from_vectors
from dragoman.special import EOS

WORDS = {"love": [1.0, 2, 3], "我": [4, 5, 6], "ove": [7, 8, 9]}
# The first vector of a repeated word counts.
LINES = "".join(f"{word} {' '.join(map(str, numbers))}\n" for word, numbers in WORDS.items()).encode() + b"love 7 8 9\n"
BINARY = b"3 3\n" + b"".join(
    f"{word} ".encode() + np.array(numbers, np.float32).tobytes() + b"\n" for word, numbers in WORDS.items()
)
FORMATS = {
    "glove.txt": LINES,
    "word2vec.txt": b"4 3\n" + LINES,
    "fasttext.vec": b"4 3\n" + LINES.replace(b"\n", b" \n"),
    "packed.txt.gz": gzip.compress(b"4 3\n" + LINES),
    "word2vec.bin": BINARY,
}


def test_every_format_is_read(tmp_path) -> None:
    for name, content in FORMATS.items():
        (tmp_path / name).write_bytes(content)
        vectors = read_vectors(tmp_path / name)
        assert {word: vectors[word].tolist() for word in vectors.index_to_key} == WORDS, name
        assert len(read_vectors(tmp_path / name, limit=2)) == 2, name


def test_broken_file_is_named(tmp_path) -> None:
    path = tmp_path / "v.txt"
    for content in (None, b"", b"once upon a time\n", b"a 1 2 3\nb 4 5\n", b"9 3\na 1 2 3\n"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UserError, match=r"v\.txt: not a file of word vectors"):
            read_vectors(path)


def save(path, words: list[str], dimension: int = 32) -> dict[str, np.ndarray]:
    matrix = np.random.default_rng(1).normal(size=(len(words), dimension)).astype(np.float32)
    lines = (f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, matrix, strict=True))
    path.write_text("".join(lines), encoding="utf-8")
    return dict(zip(words, matrix, strict=True))


@pytest.mark.parametrize("tie", ["all", "none"])
def test_covered_pieces_start_from_their_vectors(tie, make_model, tokenizer, tmp_path) -> None:
    model, pieces = make_model(tie=tie), tokenizer.pieces(range(len(tokenizer)))
    known = sorted(set(pieces[EOS + 1 :]), key=lambda piece: not piece.startswith("▁"))[::2]
    vectors = save(tmp_path / "v.txt", known)
    before = [each.table.weight.detach().clone() for each in (model.src_embedding, model.tgt_embedding)]
    summary = start_from_vectors(model, tmp_path / "v.txt", tokenizer, tokenizer)
    assert summary == {"file": "v.txt", "covered": {"src": len(known), "tgt": len(known)}}
    ids = [i for i, piece in enumerate(pieces) if piece in vectors]
    others = [i for i in range(len(pieces)) if i not in ids]
    for embedding, old in zip((model.src_embedding, model.tgt_embedding), before, strict=True):
        weights = embedding.table.weight.detach()
        factors = weights[ids] / torch.from_numpy(np.stack([vectors[pieces[i]] for i in ids]))
        assert torch.allclose(factors, factors.mean(), rtol=1e-3)
        assert weights[ids].square().mean() * weights.size(1) == pytest.approx(1, rel=1e-3)  # as random ones
        assert torch.equal(weights[others], old[others])


def test_pieces_match_words_but_not_parts_of_words(make_model, tokenizer, tmp_path) -> None:
    pieces = tokenizer.pieces(range(len(tokenizer)))
    whole = [p for p in pieces if p.startswith("▁") and p[1:].isalpha() and p[1:].isascii()]
    inner = [p for p in pieces[EOS + 1 :] if p.isascii() and p.isalpha() and f"▁{p}" not in pieces]
    assert whole
    assert inner
    save(tmp_path / "v.txt", [*(p[1:].lower() for p in whole), *inner, *(f"word{i}" for i in range(3000))])
    summary = start_from_vectors(make_model(), tmp_path / "v.txt", tokenizer, tokenizer)
    assert summary["covered"]["tgt"] == len(whole)


def test_vectors_that_do_not_fit_are_an_error(make_model, tokenizer, tmp_path) -> None:
    messages = {("我", 50): r"model.d_model=50 \(found 32\)", ("xyzzy", 32): "no vector for any piece"}
    for (word, dimension), message in messages.items():
        save(tmp_path / "v.txt", [word], dimension)
        with pytest.raises(UserError, match=message):
            start_from_vectors(make_model(), tmp_path / "v.txt", tokenizer, tokenizer)

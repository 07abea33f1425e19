"""Initial embeddings from files of word vectors.

Formats: word2vec (text and binary), GloVe and FastText (text), also gzipped, read by gensim. Tokenizers write ▁
before a piece that begins a word. In a file of pieces (scripts/train_word2vec.py) only equal pieces match. In other
files, "▁Word" matches "Word", else "word". Chinese pieces, digits and punctuation match themselves. A piece inside a
word of letters with cases ("ing") has no match, because the word "ing" has another meaning.
"""

import zlib
from pathlib import Path
from typing import Any

import torch

from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.model.transformer import Transformer
from dragoman.special import EOS

MARK = "▁"


def read_vectors(path: Path, limit: int | None = None) -> Any:
    """Return the first `limit` vectors of a file as gensim's KeyedVectors."""
    from gensim import utils
    from gensim.models import KeyedVectors

    try:
        with utils.open(str(path), "rb") as file:
            first, rest = file.readline().split(), file.read(4096)
        # The header is "words size".
        has_header = len(first) == 2 and all(map(bytes.isdigit, first))
        vectors = KeyedVectors.load_word2vec_format(
            str(path), binary=b"\0" in rest, no_header=not has_header, limit=limit, unicode_errors="replace"
        )
    except (ValueError, TypeError, EOFError, OSError, RuntimeError, zlib.error) as error:
        raise UserError(f"{path}: not a file of word vectors, or damaged ({error})") from error
    # Of repeated words, gensim keeps the first, and leaves empty rows at the end.
    n_words = len(vectors.key_to_index)
    vectors.index_to_key, vectors.vectors = vectors.index_to_key[:n_words], vectors.vectors[:n_words]
    return vectors


def start_from_vectors(model: Transformer, path: Path, src: Tokenizer, tgt: Tokenizer) -> dict[str, object]:
    """Initialise the embedding of each piece from its vector in `path`, if any.

    Returns {"file": name, "covered": {"src": pieces with a vector, "tgt": pieces with a vector}}.
    """
    words, d_model = read_vectors(path), model.config.d_model
    if words.vector_size != d_model:
        raise UserError(f"model.embedding.init: {path} needs model.d_model={words.vector_size} (found {d_model})")
    marked = 1000 * sum(word[:1] == MARK and word[1:2].isalnum() for word in words.index_to_key) >= len(words)
    sides = {"src": (src, model.src_embedding), "tgt": (tgt, model.tgt_embedding)}
    covered = {}
    for side, (tokenizer, embedding) in sides.items():
        # The special pieces come first.
        pieces = enumerate(tokenizer.pieces(range(EOS + 1, len(tokenizer))), EOS + 1)
        matches = {i: word for i, piece in pieces if (word := _match(piece, words, marked))}
        covered[side] = len(matches)
        if matches:
            embedding.start_from(torch.tensor(list(matches)), torch.from_numpy(words[list(matches.values())].copy()))
    if not any(covered.values()):
        raise UserError(f"model.embedding.init: {path} has no vector for any piece. Check its language")
    return {"file": path.name, "covered": covered}


def _match(piece: str, words: Any, marked: bool) -> str | None:
    """Return the word of a file of vectors that is this piece, or None."""
    word = piece.removeprefix(MARK)
    is_inside_word = word == piece and word[:1].lower() != word[:1].upper()
    spellings = [piece] if marked else [] if is_inside_word else [word, word.lower()]
    return next((each for each in spellings if each in words), None)

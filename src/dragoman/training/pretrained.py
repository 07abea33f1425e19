"""The embeddings of a new run, started from word vectors where `model.embedding.init` names a file of them.

Knows both sides of it: the pieces of the vocabularies and the tables of the model. Refuses to know: the file's format
(vectors.py). A run that goes on never comes here: its weights are in its checkpoint, and the file may be gone.
"""

import logging
from pathlib import Path

import torch

from dragoman import vectors
from dragoman.data.prepare import say
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.model.shape import ModelConfig
from dragoman.model.transformer import Transformer
from dragoman.special import BOS, EOS, PAD, UNK

N_SPECIAL = len((PAD, UNK, BOS, EOS))
log = logging.getLogger(__name__)


def check_vectors(config: ModelConfig) -> None:
    """Refuse a file that cannot fit, before hours are spent on preparing a corpus."""
    if config.embedding.init is None:
        return
    path = Path(config.embedding.init)
    dimension = vectors.layout(path).dimension
    if dimension != config.d_model:
        raise UserError(
            f"model.embedding.init: the vectors of {path} have {dimension} numbers each, model.d_model is "
            f"{config.d_model}: set model.d_model={dimension}, or take vectors of {config.d_model} "
            f"(scripts/train_word2vec.py --dim {config.d_model})"
        )


def start_from_vectors(
    model: Transformer, path: Path, src_tokenizer: Tokenizer, tgt_tokenizer: Tokenizer
) -> list[str]:
    """Give each piece that `path` has a vector for that vector; what was found, in words, one line per vocabulary.

    Raises UserError for a broken file, and for one that knows none of the pieces.
    """
    both = [model.src_embedding, model.tgt_embedding]  # with model.tie=all one and the same
    sides = [("source ", src_tokenizer, both[:1]), ("target ", tgt_tokenizer, both[1:])]
    if src_tokenizer.sha256 == tgt_tokenizer.sha256:
        sides = [("", src_tokenizer, both)]
    vocabularies = [tokenizer.pieces(range(len(tokenizer))) for _, tokenizer, _ in sides]
    words = vectors.read(path, wanted=vectors.all_spellings(piece for v in vocabularies for piece in v))
    lines = []
    for (side, _, embeddings), pieces in zip(sides, vocabularies, strict=True):
        ids, found = vectors.match(pieces, words)
        if found.any():
            for embedding in embeddings:
                embedding.start_from(torch.from_numpy(ids), torch.from_numpy(found))
        lines.append(_coverage(path.name, len(ids), len(pieces) - N_SPECIAL, side))
    if not words.matrix.any():
        raise UserError(
            f"model.embedding.init: {path} has no vector for any piece of the vocabulary; is it of another language, "
            "or not in UTF-8?"
        )
    if words.n_duplicates:
        lines.append(f"{path.name}: {words.n_duplicates:,} words came again; the first vector of each counts")
    for line in lines:
        log.info(line)
        say(line)
    return lines


def _coverage(name: str, n_covered: int, n_pieces: int, side: str) -> str:
    line = f"{name}: {n_covered:,} of {n_pieces:,} {side}pieces covered ({100 * n_covered / n_pieces:.0f} %)"
    if 2 * n_covered >= n_pieces:
        return line
    return (
        f"warning: {line}, less than half: the others start at random. Vectors that know every piece: "
        "scripts/train_word2vec.py"
    )

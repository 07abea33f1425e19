"""Nearest words: python scripts/neighbours.py --vectors v.txt king - man + woman

Searches a file of word vectors, or a model's embeddings (--model runs/zh_en) of subwords: "▁" marks the start of
a word. Words are added and subtracted as vectors of length 1, and neighbours sorted by their cosine with the sum.
"""

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from dragoman import bundle
from dragoman.commands import cli
from dragoman.errors import UserError, suggest
from dragoman.special import EOS

SIGNS = {"+": 1.0, "-": -1.0}
MARK = "▁"  # stands before a subword that starts a word


@cli.command
def main(argv: list[str]) -> None:
    parser = cli.Parser(__doc__)
    parser.add_argument("words", nargs="+", metavar="WORD", help="a word, or: king - man + woman")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--vectors", metavar="FILE", help="word2vec, GloVe or fastText, also .gz")
    source.add_argument("--model", metavar="FOLDER", help="a bundle, or a run that has one")
    parser.add_argument("--most", type=cli.positive, default=200_000, metavar="N", help="words read of FILE (200000)")
    parser.add_argument("--side", choices=("src", "tgt"), default="src", help="of the model's embeddings (src)")
    parser.add_argument("--top", type=cli.positive, default=10, metavar="N", help="how many neighbours (10)")
    args = parser.parse_args(argv)
    from dragoman.explain.vectors import read_vectors

    vectors = of_model(args.model, args.side) if args.model else read_vectors(Path(args.vectors), limit=args.most)
    words = " ".join(args.words).split()
    if not words or words[-1] in SIGNS:
        raise UserError("WORD: a word must follow the last + or -, as in: king - man + woman")
    terms = [(SIGNS.get(a, 1.0), b) for a, b in zip(["+", *words], words, strict=False) if b not in SIGNS]
    query = [(find(word, vectors.key_to_index, args.vectors or args.model), sign) for sign, word in terms]
    print(" ".join(f"{'+' if sign > 0 else '-'} {word}" for word, sign in query).removeprefix("+ "))
    for word, cosine in vectors.most_similar(positive=query, topn=args.top):
        print(f"{cosine:7.3f}  {word}")


def of_model(folder: str, side: str) -> Any:
    """Return a model's embeddings as gensim's KeyedVectors, without special ids."""
    from gensim.models import KeyedVectors

    model = bundle.load(folder)
    tokenizer = model.src_tokenizer if side == "src" else model.tgt_tokenizer
    embedding = model.model.src_embedding if side == "src" else model.model.tgt_embedding
    matrix = embedding.table.weight.detach().numpy()[EOS + 1 :]
    vectors = KeyedVectors(matrix.shape[1])
    vectors.add_vectors(tokenizer.pieces(range(EOS + 1, len(tokenizer))), matrix)
    return vectors


def find(word: str, known: Collection[str], where: str) -> str:
    """Return the known spelling of `word`, with or without MARK. Raises UserError."""
    for spelling in (MARK + word, word, MARK + word.lower(), word.lower()):
        if spelling in known:
            return spelling
    # Suggests words with the same first letter only: comparing with all takes minutes in a large file.
    alike = {other.removeprefix(MARK) for other in known if other.removeprefix(MARK)[:1] == word[:1]}
    raise UserError(f"{where}: no vector for '{word}'{suggest(word, alike)}")


if __name__ == "__main__":
    sys.exit(main())

"""List the words near a word: python scripts/neighbours.py --vectors data/vectors.txt king - man + woman

Searches a file of word vectors, or the embeddings of a model (--model runs/zh_en). Words are added and subtracted as
vectors of length 1; near is what has a large cosine with the sum. The words of the query are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.commands import cli
from dragoman.errors import UserError, suggest

if TYPE_CHECKING:
    from gensim.models import KeyedVectors

SIGNS = {"+": 1.0, "-": -1.0}
MARK = "▁"  # begins a piece that begins a word


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__)
    parser.add_argument("words", nargs="+", metavar="WORD", help="a word, or: king - man + woman")
    parser.add_argument("--vectors", metavar="FILE", help="word2vec, GloVe or fastText, also .gz")
    parser.add_argument("--most", type=int, default=200_000, metavar="N", help="its first N words (200000)")
    parser.add_argument("--model", metavar="FOLDER", help="a bundle, or a run that has one")
    parser.add_argument("--side", choices=("src", "tgt"), help="with --model: whose embeddings (src)")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="how many neighbours (10)")
    return parser


@cli.command
def main(argv: list[str]) -> None:
    args = parser().parse(argv)
    if bool(args.vectors) == bool(args.model):
        raise UserError("give either --vectors FILE or --model FOLDER")
    if args.side and not args.model:
        raise UserError("--side needs --model")
    cli.check_at_least_one(args, "top", "most")
    terms = parse(" ".join(args.words).split())
    if args.model:
        vectors = of_model(args.model, args.side or "src")
    else:
        from dragoman.explain.vectors import read_vectors

        vectors = read_vectors(Path(args.vectors), limit=args.most)
    query = [(find(word, vectors.key_to_index, args.vectors or args.model), sign) for sign, word in terms]
    print(" ".join(f"{'+' if sign > 0 else '-'} {word}" for word, sign in query).removeprefix("+ "))
    for word, cosine in vectors.most_similar(positive=query, topn=args.top):
        print(f"{cosine:7.3f}  {word}")


def parse(words: list[str]) -> list[tuple[float, str]]:
    """['king', '-', 'man'] -> [(1.0, 'king'), (-1.0, 'man')]; a sign may stand before the first word, too."""
    if words and words[0] not in SIGNS:
        words = ["+", *words]
    signs, names = words[::2], words[1::2]
    if not names or len(signs) != len(names) or set(signs) - SIGNS.keys() or set(names) & SIGNS.keys():
        raise UserError(
            f"cannot read '{' '.join(words).removeprefix('+ ')}'. Write a word, or words with + or - between them and "
            "spaces around these: king - man + woman"
        )
    return [(SIGNS[sign], name) for sign, name in zip(signs, names, strict=True)]


def of_model(folder: str, side: str) -> KeyedVectors:
    """Return the embeddings of a model without its special ids."""
    try:
        from gensim.models import KeyedVectors
    except ImportError:
        raise UserError("neighbours need gensim: pip install 'dragoman[vectors]'") from None
    from dragoman import bundle
    from dragoman.special import BOS, EOS, PAD, UNK

    model = bundle.load(folder)
    tokenizer = model.src_tokenizer if side == "src" else model.tgt_tokenizer
    embedding = model.model.src_embedding if side == "src" else model.model.tgt_embedding
    ids = [i for i in range(len(tokenizer)) if i not in (PAD, UNK, BOS, EOS)]
    matrix = embedding.table.weight.detach()[ids].numpy()
    vectors = KeyedVectors(matrix.shape[1])
    vectors.add_vectors(tokenizer.pieces(ids), matrix)
    return vectors


def find(word: str, known: Collection[str], where: str) -> str:
    """Return the spelling of `word` among the known words: with the mark of a word's beginning, or without."""
    for spelling in (MARK + word, word, MARK + word.lower(), word.lower()):
        if spelling in known:
            return spelling
    # Only words that begin alike are compared: in a large file, all would take minutes.
    alike = {other.removeprefix(MARK) for other in known if other.removeprefix(MARK)[:1] == word[:1]}
    in_pieces = any(other.startswith(MARK) for other in known)
    why = "; a rare word is cut into pieces and has none" if in_pieces else ""
    raise UserError(f"{where} has no vector for '{word}'{suggest(word, alike)}{why}")


if __name__ == "__main__":
    sys.exit(main())

"""What lies near a word: python scripts/neighbours.py --vectors data/vectors.txt king - man + woman

Asks a text file of word vectors, or the embeddings of a model (--model runs/zh_en). Words are added and subtracted as
vectors of length 1; near is what has a small angle to the sum, a cosine close to 1. The words asked with are not among
the answers.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.doors import Parser, open_door
from dragoman.errors import UserError

if TYPE_CHECKING:
    import numpy as np

SIGNS = {"+": 1.0, "-": -1.0}


def parser() -> Parser:
    parser = Parser("neighbours.py", __doc__ or "")
    parser.add_argument("words", nargs="+", metavar="WORD", help="a word, or: king - man + woman")
    parser.add_argument("--vectors", metavar="FILE", help="word2vec, GloVe or fastText, as text or .gz")
    parser.add_argument(
        "--most", type=int, default=200_000, metavar="N", help="of its words, the first N (200000)"
    )
    parser.add_argument("--model", metavar="FOLDER", help="a bundle, or a run that has one")
    parser.add_argument("--side", choices=("src", "tgt"), help="with --model: whose embeddings (src)")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="how many neighbours (10)")
    return parser


def main() -> None:
    args = parser().parse()
    if bool(args.vectors) == bool(args.model):
        raise UserError("whose vectors? give either --vectors FILE or --model FOLDER")
    if args.side and not args.model:
        raise UserError("--side only means something with --model")
    for option in ("top", "most"):
        if getattr(args, option) < 1:
            raise UserError(f"--{option} {getattr(args, option)}: must be at least 1")
    terms = parse(" ".join(args.words).split())
    where, words, matrix = (
        of_model(args.model, args.side or "src") if args.model else of_file(Path(args.vectors), args.most)
    )
    rows = {word: row for row, word in enumerate(words)}
    found = [(sign, find(word, rows, where)) for sign, word in terms]
    near = nearest(matrix, found, args.top)
    print(" ".join(f"{'+' if sign > 0 else '-'} {words[row]}" for sign, row in found).removeprefix("+ "))
    for row, cosine in near:
        print(f"{cosine:7.3f}  {words[row]}")


def parse(words: list[str]) -> list[tuple[float, str]]:
    """['king', '-', 'man'] -> [(1.0, 'king'), (-1.0, 'man')]; a sign may stand before the first word, too."""
    if words and words[0] not in SIGNS:
        words = ["+", *words]
    signs, names = words[::2], words[1::2]
    if not names or len(signs) != len(names) or set(signs) - SIGNS.keys() or set(names) & SIGNS.keys():
        raise UserError(
            f"cannot read '{' '.join(words).removeprefix('+ ')}': it is a word, or words with + or - between them and "
            "spaces around these: king - man + woman"
        )
    return [(SIGNS[sign], name) for sign, name in zip(signs, names, strict=True)]


def of_file(path: Path, most: int) -> tuple[str, list[str], np.ndarray]:
    from dragoman import vectors

    read = vectors.read(path, most=most)
    return str(path), list(read.rows), read.matrix


def of_model(folder: str, side: str) -> tuple[str, list[str], np.ndarray]:
    """The embeddings without the special ids, which are no words."""
    from dragoman import bundle
    from dragoman.special import BOS, EOS, PAD, UNK

    made = bundle.load(folder)
    tokenizer = made.src_tokenizer if side == "src" else made.tgt_tokenizer
    embedding = made.model.src_embedding if side == "src" else made.model.tgt_embedding
    ids = [i for i in range(len(tokenizer)) if i not in (PAD, UNK, BOS, EOS)]
    return folder, tokenizer.pieces(ids), embedding.table.weight.detach()[ids].numpy()


def find(word: str, rows: dict[str, int], where: str) -> int:
    """The row of a word: as a piece that begins a word where it is one of letters, else as it stands."""
    from dragoman.vectors import MARK, is_word_of_letters

    as_piece, lower = MARK + word, MARK + word.lower()
    order = [as_piece, word, lower, word.lower()] if is_word_of_letters(word) else [word, as_piece]
    for spelling in order:
        if spelling in rows:
            return rows[spelling]
    # Of a large file only words that begin alike are compared, or this would take minutes.
    alike = {other.removeprefix(MARK) for other in rows if other.removeprefix(MARK)[:1] == word[:1]}
    close = difflib.get_close_matches(word, sorted(alike), n=3, cutoff=0.5)
    meant = f" (did you mean {', '.join(map(repr, close))}?)" if close else ""
    why = "; rare words have none, being cut into pieces" if any(w.startswith(MARK) for w in rows) else ""
    raise UserError(f"{where} has no vector for '{word}'{meant}{why}")


def nearest(matrix: np.ndarray, terms: list[tuple[float, int]], top: int) -> list[tuple[int, float]]:
    """(row, cosine) of the `top` rows nearest to the sum of the signed rows `terms`, these left out."""
    import numpy as np

    unit = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
    wanted = np.sum([sign * unit[row] for sign, row in terms], axis=0)
    if not (length := np.linalg.norm(wanted)) > 1e-6:
        raise UserError("these words cancel out: nothing is left to be near to")
    cosines = unit @ (wanted / length)
    asked = {row for _, row in terms}
    order = (int(row) for row in np.argsort(-cosines, kind="stable") if int(row) not in asked)
    return [(row, float(cosines[row])) for row, _ in zip(order, range(top), strict=False)]


if __name__ == "__main__":
    open_door(main)

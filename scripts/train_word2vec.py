"""Train word vectors: python scripts/train_word2vec.py experiment=zh_en --output data/vectors.txt

The settings are those of train.py and mean the same data: its training sentences of both sides, in the same pieces, so
that `python train.py experiment=zh_en name=zh_en_vectors model.embedding.init=data/vectors.txt` finds every piece, in
the dimension of its model. Skip-gram guesses the neighbours from a piece, CBOW a piece from its neighbours (Mikolov
et al. 2013). Equal settings and seed give equal vectors, as long as there is one worker.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dragoman.doors import Parser, new_file, open_door
from dragoman.errors import UserError
from dragoman.experiments import settings

if TYPE_CHECKING:
    from dragoman.data.datamodule import TranslationData

SKIPGRAM = {"skipgram": 1, "cbow": 0}


def parser() -> Parser:
    parser = Parser("train_word2vec.py", __doc__ or "")
    parser.add_argument("setting", nargs="*", help="which data, as for train.py: experiment=zh_en, key=value")
    parser.add_argument("--output", required=True, metavar="FILE", help="the vectors, as word2vec's text")
    parser.add_argument("--overwrite", action="store_true", help="replace the file that is there")
    parser.add_argument("--kind", choices=SKIPGRAM, default="skipgram", help="skipgram (default) or cbow")
    parser.add_argument("--dim", type=int, metavar="N", help="numbers per vector (model.d_model)")
    parser.add_argument("--window", type=int, default=5, metavar="N", help="neighbours on either side (5)")
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="passes over the sentences (5)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="threads (1)")
    return parser


def main() -> None:
    args = parser().parse()
    for option in ("dim", "window", "epochs", "workers"):
        value = getattr(args, option)
        if value is not None and value < 1:
            raise UserError(f"--{option} {value}: must be at least 1")
    given = settings(args.setting)
    with new_file(
        args.output, overwrite=args.overwrite
    ) as file:  # first: a name taken is to be known at once
        try:
            from gensim.models import Word2Vec
        except ImportError:
            raise UserError("training word vectors needs gensim: pip install -e '.[vectors]'") from None
        from dragoman import vectors
        from dragoman.config import check
        from dragoman.data.datamodule import TranslationData

        logging.getLogger("gensim").setLevel(logging.ERROR)
        config = check(given)
        # A folder of its own for the report: what a run remembers of its corpora is for the run to decide.
        with redirect_stdout(sys.stderr), TemporaryDirectory() as folder:
            data = TranslationData(config.data, Path(folder), config.seed)
            data.prepare()
        model = Word2Vec(
            sg=SKIPGRAM[args.kind],
            vector_size=args.dim or config.model.d_model,
            window=args.window,
            min_count=1,  # the vocabulary has no rare words: they are spelt in pieces
            workers=args.workers,
            seed=config.seed,
        )
        sentences = Sentences(data, args.epochs)
        model.build_vocab(sentences)
        model.train(sentences, total_examples=model.corpus_count, epochs=args.epochs)
        vectors.write(file, model.wv.index_to_key, model.wv.vectors)
    n_words, dimension = model.wv.vectors.shape
    print(f"{n_words:,} pieces in {dimension} dimensions ({args.kind}): {args.output}")
    print(
        f"use them: python train.py {' '.join([*given, f'model.embedding.init={args.output}', 'name=NEW_NAME'])}"
    )


class Sentences:
    """The sentences of an epoch as lists of pieces, source and target in turn: once to be counted, then per epoch."""

    def __init__(self, data: TranslationData, epochs: int) -> None:
        tokenizers = data.src_tokenizer, data.tgt_tokenizer
        vocabularies = [tokenizer.pieces(range(len(tokenizer))) for tokenizer in tokenizers]
        self.sides = list(zip(data.prepared.train_ids(), vocabularies, strict=True))
        self.rows = data.prepared.index().tolist()
        self.epochs, self.passes = epochs, 0

    def __iter__(self) -> Iterator[list[str]]:
        from tqdm import tqdm

        what = f"epoch {self.passes} of {self.epochs}" if self.passes else "counting"
        self.passes += 1
        for row in tqdm(self.rows, desc=what, unit=" pairs", unit_scale=True, disable=None):
            for ids, pieces in self.sides:
                yield [pieces[i] for i in ids[row].tolist()]


if __name__ == "__main__":
    open_door(main)

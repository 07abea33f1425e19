"""Train word2vec: python scripts/train_word2vec.py experiment=zh_en --output v.txt

Takes the settings of train.py and trains on the same data: the training sentences of both languages, tokenised in the
same way. So `python train.py experiment=zh_en model.d_model=256 model.embedding.init=data/vectors.txt` finds a vector
for every piece that occurs in them. Skip-gram predicts the neighbours of a piece, CBOW a piece from the mean of its
neighbours' vectors (Mikolov et al. 2013), or from their sum. Equal settings and seed give equal vectors with one
worker.
"""

import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from dragoman.commands import cli
from dragoman.commands.train import check_settings
from dragoman.compose import compose
from dragoman.data.prepare import Prepared, prepare
from dragoman.errors import UserError

KINDS = {"skipgram": {"sg": 1}, "cbow": {"sg": 0, "cbow_mean": 1}, "cbow_sum": {"sg": 0, "cbow_mean": 0}}


@cli.command
def main(argv: list[str]) -> None:
    parser = cli.Parser(__doc__)
    parser.usage = "%(prog)s experiment=NAME key=value ... --output FILE [options]"
    parser.add_argument("--output", required=True, metavar="FILE", help="the vectors, as word2vec's text")
    parser.add_argument("--overwrite", action="store_true", help="replace the file that is there")
    parser.add_argument("--kind", choices=KINDS, default="skipgram", help="skipgram (default), cbow or cbow_sum")
    parser.add_argument("--dim", type=cli.positive, metavar="N", help="numbers per vector (model.d_model, or 256)")
    parser.add_argument("--window", type=cli.positive, default=5, metavar="N", help="neighbours on either side (5)")
    parser.add_argument("--epochs", type=cli.positive, default=5, metavar="N", help="passes over the sentences (5)")
    parser.add_argument("--workers", type=cli.positive, default=1, metavar="N", help="threads (1)")
    args, words = parser.parse_known_args(argv)
    config = compose(check_settings(words))
    from gensim.models import Word2Vec

    if args.output.endswith(".gz"):
        raise UserError(f"--output {args.output}: it is plain text. Name a file without .gz")
    from dragoman.training import recipe

    # Opened before the work: a file that cannot be written is reported at once.
    with cli.new_file(args.output, overwrite=args.overwrite) as file:
        # The data's own report goes into a folder that is removed, and its messages to stderr.
        with redirect_stdout(sys.stderr), TemporaryDirectory() as folder:
            prepared = prepare(config.data, Path(folder))
        options = {"window": args.window, "workers": args.workers, "epochs": args.epochs, "seed": config.seed}
        size = args.dim or config.model.d_model or recipe.size("small")["d_model"]
        # min_count=1: the vocabulary has no rare words, they are spelt in pieces.
        model = Word2Vec(Sentences(prepared), vector_size=size, min_count=1, **KINDS[args.kind], **options).wv
        model.save_word2vec_format(file.name)
    print(f"{len(model):,} pieces in {size} dimensions ({args.kind}): {args.output}")
    settings = [*words, f"model.d_model={size}", f"model.embedding.init={args.output}"]
    print(f"use them: python train.py {shlex.join(settings)} name=NEW_NAME")


class Sentences:
    """The training sentences as lists of pieces, source and target in turn."""

    def __init__(self, prepared: Prepared) -> None:
        self.ids = prepared.train_ids
        tokenizers = prepared.src_tokenizer, prepared.tgt_tokenizer
        self.vocabularies = [tokenizer.pieces(range(len(tokenizer))) for tokenizer in tokenizers]

    def __iter__(self) -> Iterator[list[str]]:
        for row in range(len(self.ids)):
            pieces = self.vocabularies[row % 2]
            yield [pieces[i] for i in self.ids[row].tolist()]


if __name__ == "__main__":
    sys.exit(main())

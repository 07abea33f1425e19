"""Back-translate monolingual text: python scripts/back_translate.py --input en.txt

A model of the reverse direction translates each line. The result is a TSV of tagged sources and the lines themselves
as targets (Sennrich et al. 2016; the tag: Caswell et al. 2019). Lines without letters, and translations with a warning
(repetitions, copies, a wrong script ...) are dropped and counted. --sample draws translations instead of searching:
better for a large text (Edunov et al. 2018). Train on the file beside real pairs:
data.corpora='[{path: real, repeat: 2}, {path: synthetic.tsv}]'
"""

import sys
from collections import Counter
from itertools import tee

from dragoman.commands import cli
from dragoman.data.text import SYNTHETIC, clean_text
from dragoman.errors import UserError


@cli.command
def main(argv: list[str]) -> None:
    parser = cli.Parser(__doc__)
    parser.add_argument("--model", metavar="FOLDER", help="a bundle or run (the newest that reads the input)")
    parser.add_argument("--input", metavar="FILE", required=True, help="lines in the target language of the next model")
    parser.add_argument("--output", metavar="FILE.tsv", default="synthetic.tsv", help="the corpus (synthetic.tsv)")
    parser.add_argument("--overwrite", action="store_true", help="replace a corpus that exists already")
    cli.add_translation_options(parser)
    args = parser.parse_args(argv)
    if not args.output.endswith(".tsv"):
        raise UserError(f"--output {args.output}: the corpus is a TSV. Name a file that ends in .tsv")
    dropped: Counter[str] = Counter()
    n_kept = 0
    with cli.new_file(args.output, overwrite=args.overwrite) as out:
        translator, lines, direction = cli.load_translator(args, cli.read_lines(args.input))
        search = cli.search_config(args, translator.bundle.search)
        texts, targets = tee(map(clean_text, lines))
        out.write(f"{direction.tgt}\t{direction.src}\n".encode())
        with cli.progress_bar(cli.count_lines(args.input)) as progress:
            settings = {"batch_tokens": args.batch, "direction": str(direction), "progress": progress}
            results = translator.stream(texts, search, **settings)
            for result, target in zip(results, targets, strict=True):
                has_letters = any(map(str.isalpha, target))
                reasons = [text.partition(":")[0] for text in result.warnings] if has_letters else ["no letters"]
                if reasons:
                    dropped[reasons[0]] += 1
                else:
                    n_kept += 1
                    out.write(f"{SYNTHETIC}{clean_text(result.text)}\t{target}\n".encode())
        if not n_kept:
            raise UserError(f"{args.input}: no line is left (found {dict(dropped)}). Check --input and --direction")
    print(f"{args.output}: {n_kept:,} pairs")
    for reason, n in dropped.most_common():
        print(f"dropped, {reason}: {n:,}")
    print(f"train with data.src={direction.tgt} data.tgt={direction.src}, this corpus beside real ones")


if __name__ == "__main__":
    sys.exit(main())

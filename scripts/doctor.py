"""Examine a corpus before training: python scripts/doctor.py tatoeba

One page (HTML) and the same as JSON: alignment, duplicates, leaks, languages, encodings, scripts, lengths, ratios, the
twenty most suspicious pairs with their rows, and settings to train with. A corpus is named as in data.corpora: a file
(.tsv .jsonl .parquet .tmx, also .gz), a folder, a dataset on the hub; or two aligned files by --src-path and
--tgt-path. Several are examined together, as training would read them.
"""

import json
import sys
from pathlib import Path

from rich.console import Console

from dragoman.commands import cli
from dragoman.config import CorpusConfig, DataConfig
from dragoman.doctor.report import examine, page, summary
from dragoman.errors import UserError


@cli.command
def main(argv: list[str]) -> None:
    parser = cli.Parser(__doc__)
    parser.add_argument("corpora", nargs="*", metavar="CORPUS", help="a file, a folder, or a hub dataset")
    parser.add_argument("--src-path", metavar="FILE", help="source lines, with --tgt-path")
    parser.add_argument("--tgt-path", metavar="FILE", help="their translations, line by line")
    parser.add_argument("--src", default="zh", metavar="LANGUAGE", help="language code of the source (default: zh)")
    parser.add_argument("--tgt", default="en", metavar="LANGUAGE", help="language code of the target (default: en)")
    parser.add_argument("--name", help="configuration of a hub dataset, e.g. en-zh")
    parser.add_argument("--src-column", metavar="COLUMN", help="the source's column (default: its language)")
    parser.add_argument("--tgt-column", metavar="COLUMN", help="the target's column (default: its language)")
    parser.add_argument("--root", metavar="FOLDER", help="folder of local corpora (default: $DRAGOMAN_DATA)")
    parser.add_argument("--output", metavar="FILE.html", help="the report (default: doctor_CORPUS.html)")
    parser.add_argument("--overwrite", action="store_true", help="replace reports that exist already")
    args = parser.parse_args(argv)
    if not args.corpora and not args.src_path:
        raise UserError("CORPUS: missing. Name a corpus, or two aligned files by --src-path and --tgt-path")
    columns = {"name": args.name, "src_column": args.src_column, "tgt_column": args.tgt_column}
    corpora = [CorpusConfig(path=path, **columns) for path in dict.fromkeys(args.corpora)]
    if args.src_path or args.tgt_path:
        corpora.append(CorpusConfig(src_path=args.src_path, tgt_path=args.tgt_path))
    config = DataConfig(src=args.src, tgt=args.tgt, root=args.root, corpora=corpora)
    name = args.output or f"doctor_{'_'.join(corpus.short_name for corpus in corpora)}.html"
    html, plain = (str(Path(name).with_suffix(suffix)) for suffix in (".html", ".json"))
    # Opened before the work: a file that cannot be written is reported at once.
    with cli.new_file(html, overwrite=args.overwrite) as web, cli.new_file(plain, overwrite=args.overwrite) as data:
        report = examine(config)
        web.write(page(report))
        data.write(json.dumps(report, ensure_ascii=False, indent=1).encode() + b"\n")
    Console().print(summary(report), soft_wrap=True)
    print(f"The report: {html} (open it in a browser) and {plain}")


if __name__ == "__main__":
    sys.exit(main())

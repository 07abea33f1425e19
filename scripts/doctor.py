"""Examine a corpus before training: python scripts/doctor.py tatoeba --src zh --tgt en

One page (HTML) and the same as JSON: alignment, duplicates, leaks, languages, encodings, scripts, lengths, characters,
tokens, the twenty most suspicious pairs with their lines, and the settings to train with. A corpus is named as in
data.corpora: a file (.tsv .jsonl .parquet), a folder, a dataset on the hub; two aligned files by --src-path and
--tgt-path. Several are examined as the one that training would make of them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dragoman.doors import Parser, new_file, open_door
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.data.prepare import DataConfig


def parser() -> Parser:
    parser = Parser("doctor.py", __doc__ or "")
    parser.add_argument(
        "corpora", nargs="*", metavar="CORPUS", help="a file, a folder, or a dataset on the hub"
    )
    parser.add_argument("--src-path", metavar="FILE", help="source lines, with --tgt-path")
    parser.add_argument("--tgt-path", metavar="FILE", help="their translations, line by line")
    parser.add_argument("--src", default="zh", metavar="LANGUAGE", help="language code of the source (zh)")
    parser.add_argument("--tgt", default="en", metavar="LANGUAGE", help="language code of the target (en)")
    parser.add_argument("--name", help="the configuration of a hub dataset, e.g. en-zh")
    parser.add_argument("--src-column", metavar="COLUMN", help="the source's column (default: its language)")
    parser.add_argument("--tgt-column", metavar="COLUMN", help="the target's column (default: its language)")
    parser.add_argument("--root", metavar="FOLDER", help="folder of local corpora (default: $DRAGOMAN_DATA)")
    parser.add_argument("--output", metavar="FILE.html", help="default: doctor_CORPUS.html, here")
    parser.add_argument("--overwrite", action="store_true", help="replace reports that exist already")
    return parser


def main() -> None:
    args = parser().parse()
    if not args.corpora and not args.src_path:
        raise UserError("which corpus? name one, or two aligned files by --src-path and --tgt-path")
    from dragoman.data.corpus import CorpusConfig
    from dragoman.data.prepare import DataConfig
    from dragoman.doctor.examine import examine, report_paths
    from dragoman.doctor.page import page, summary

    columns = {"name": args.name, "src_column": args.src_column, "tgt_column": args.tgt_column}
    corpora = [CorpusConfig(path=path, **columns) for path in dict.fromkeys(args.corpora)]
    if args.src_path or args.tgt_path:
        corpora.append(CorpusConfig(src_path=args.src_path, tgt_path=args.tgt_path))
    config: DataConfig = DataConfig(src=args.src, tgt=args.tgt, root=args.root, corpora=corpora)
    html, plain = report_paths(args.output, config)
    # Opened before the work: what cannot be written, or must not be, is told now and not minutes later.
    with new_file(html, overwrite=args.overwrite) as pages, new_file(plain, overwrite=args.overwrite) as data:
        report = examine(config)
        pages.write(page(report))
        data.write(json.dumps(report, ensure_ascii=False, indent=1).encode() + b"\n")
    print(summary(report))
    print(f"The report: {html} (open it in a browser) and {plain}")


if __name__ == "__main__":
    open_door(main)

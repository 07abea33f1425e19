"""Compare systems on one test set: python scripts/compare.py runs/a runs/b [runs/c ...]

A system is an evaluation folder of scripts/evaluate.py, or a run with one. With --corpus, or --src and --ref, it is a
bundle to translate this test set; with --src and --ref also a file of hypotheses. All are compared with the first by
BLEU, chrF and TER, with significance, by length and rarity, with the sentences won and lost most, and one conclusion.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from dragoman.bundle import load_info
from dragoman.commands import cli
from dragoman.config import CorpusConfig
from dragoman.errors import UserError
from dragoman.evaluation import testsets
from dragoman.evaluation.comparison import Outputs, compare, of_bundle, of_evaluation, of_file
from dragoman.languages import named


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__)
    parser.add_argument("systems", nargs="+", metavar="SYSTEM", help="an evaluation, a run, or a file of hypotheses")
    parser.add_argument("--corpus", metavar="PATH", help="test set of bundles: a file, a folder, or a hub dataset")
    parser.add_argument("--split", default="test", help="of the corpus: train, validation or test (test)")
    parser.add_argument("--direction", metavar="SRC_TGT", help="of a bundle that translates in both")
    parser.add_argument("--src", metavar="FILE", help="test set of bundles or files: the sources")
    parser.add_argument("--ref", metavar="FILE", action="append", default=[], help="references of --src, line by line")
    parser.add_argument("--tgt", default="en", metavar="CODE", help="with files: the language of the hypotheses (en)")
    parser.add_argument("--sentences", type=int, default=20, metavar="N", help="sentences won and lost to show (20)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


@cli.command
def main(argv: list[str]) -> None:
    args = parser().parse(argv)
    if len(args.systems) < 2:
        raise UserError("one system: name at least two")
    if bool(args.src) != bool(args.ref):
        raise UserError("--src and --ref go together: the sources, and their references")
    if args.src and args.corpus:
        raise UserError("give either --corpus or --src and --ref, not both")
    result = compare([system(Path(name), args) for name in args.systems])
    if args.json:
        print(json.dumps(result, ensure_ascii=False, indent=2))
    else:
        show(result, args.sentences)


def system(path: Path, args: argparse.Namespace) -> Outputs:
    """Read the translations of a system, or make them."""
    if not args.src and not args.corpus:
        return of_evaluation(path)
    references = list(map(Path, args.ref))
    if args.src and path.is_file():
        return of_file(path, Path(args.src), references, args.tgt)
    choices = load_info(path).directions
    if len(choices) > 1 and not args.direction:
        raise UserError(f"{path}: translates {' and '.join(map(str, choices))}. Choose one with --direction")
    direction = named(args.direction or str(choices[0]), choices)
    if args.src:
        return of_bundle(path, testsets.of_files(Path(args.src), references), direction)
    corpus = CorpusConfig(path=args.corpus)
    return of_bundle(path, testsets.of_corpus(corpus, args.split, direction, root=None), direction)


def show(result: dict[str, Any], n_sentences: int) -> None:
    """Print the tables and the verdicts."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    metrics = list(next(iter(result["scores"].values())))
    heads = [f"{metric} (95 %)" for metric in metrics]
    table = grid("system", *heads, *(f"p {metric}" for metric in metrics), title=f"{result['sentences']} sentences")
    for name, scores in result["scores"].items():
        cells = [f"{scores[metric]:.2f} ({result['intervals'][name][metric]})" for metric in metrics]
        both = [[result["p"][kind][name][metric] for kind in ("bs", "ar")] for metric in metrics]
        table.add_row(name, *cells, *("" if None in p else " / ".join(f"{each:.4f}" for each in p) for p in both))
    console.print(table)
    console.print("p: bootstrap / randomization.", *result["signatures"], sep="\n")
    for title, groups in result["groups"].items():
        table = grid(title, *next(iter(groups.values())), title="chrF")
        for group, row in groups.items():
            cells = [f"{value:.0f}" if key == "sentences" else f"{value:.2f}" for key, value in row.items()]
            table.add_row(group, *cells)
        console.print(table)
    for name, lists in result["won"].items():
        for which, rows in lists.items():
            table = grid("source", "reference", "1", name, title=f"{which} most by {name}")
            for row in rows[:n_sentences]:
                table.add_row(*row)
            if rows:
                console.print(table)
    console.print(*result["verdicts"], *result["readers"], sep="\n")


def grid(*heads: str, title: str) -> Table:
    """Return an empty table that folds long texts."""
    return Table(*(Column(head, overflow="fold") for head in heads), title=title)


if __name__ == "__main__":
    sys.exit(main())

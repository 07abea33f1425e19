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

from dragoman.commands import cli
from dragoman.data.lines import check_aligned, lines
from dragoman.data.text import clean_text
from dragoman.errors import UserError
from dragoman.evaluation.comparison import Outputs, compare, of_evaluation
from dragoman.evaluation.testsets import of_files
from dragoman.translation.translator import Translator
from evaluate import parse, test_set_of


@cli.command
def main(argv: list[str]) -> None:
    parser = cli.Parser(__doc__)
    parser.add_argument("systems", nargs="+", metavar="SYSTEM", help="an evaluation, a run, or a file of hypotheses")
    parser.add_argument("--direction", metavar="SRC_TGT", help="of a bundle that translates in both")
    parser.add_argument("--tgt", default="en", metavar="CODE", help="with files: the language of the hypotheses (en)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    args = parse(parser, argv)
    if len(args.systems) < 2:
        raise UserError("SYSTEM: only one. Name at least two")
    result = compare([system(Path(name), args) for name in args.systems])
    if args.json:
        print(json.dumps(result, ensure_ascii=False, indent=2))
    else:
        show(result)


def system(path: Path, args: argparse.Namespace) -> Outputs:
    """Read the translations of a system, or make them."""
    if not args.src and not args.corpus:
        return of_evaluation(path)
    if args.src and path.is_file():
        check_aligned(Path(args.src), path)
        pairs = of_files(Path(args.src), list(map(Path, args.ref)))
        return Outputs(path.name, args.tgt, pairs, list(map(clean_text, lines(path))))
    translator = Translator.load(path)
    _, pairs, direction = test_set_of(args, translator, path)
    results = translator.stream([pair.src for pair in pairs], direction=str(direction))
    return Outputs(str(path), direction.tgt, pairs, [clean_text(result.text) for result in results])


def show(result: dict[str, Any]) -> None:
    """Print the tables and the verdicts."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    metrics = list(next(iter(result["scores"].values())))
    heads = [f"{metric} (95 %)" for metric in metrics]
    table = grid("system", *heads, *(f"p {metric}" for metric in metrics), title=f"{result['sentences']} sentences")
    for name, scores in result["scores"].items():
        cells = ["{score:.2f} ({interval})".format(**score) for score in scores.values()]
        p = [score["p"] for score in scores.values()]
        table.add_row(name, *cells, *("" if None in each else "{:.4f} / {:.4f}".format(*each) for each in p))
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
            for row in rows:
                table.add_row(*row)
            if rows:
                console.print(table)
    console.print(*result["verdicts"], *result["readers"], sep="\n")


def grid(*heads: str, title: str) -> Table:
    """Return an empty table that folds long texts."""
    return Table(*(Column(head, overflow="fold") for head in heads), title=title)


if __name__ == "__main__":
    sys.exit(main())

"""Compare systems on one test set: python scripts/compare.py runs/a runs/b [runs/c ...]

Each system is an evaluation folder of scripts/evaluate.py (or a run with one), or with --src and --ref a file of
hypotheses, line by line. All are compared with the first: BLEU, chrF and TER, paired bootstrap and approximate
randomization, scores by length and rarity, the sentences won and lost most, and one sentence as the result.
"""

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dragoman.commands import cli
from dragoman.errors import UserError
from dragoman.evaluation.comparison import compare, of_evaluation, of_file


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__)
    parser.add_argument("systems", nargs="+", metavar="SYSTEM", help="an evaluation, a run, or a file of hypotheses")
    parser.add_argument("--src", metavar="FILE", help="with files: the sources")
    parser.add_argument("--ref", metavar="FILE", action="append", default=[], help="with files: references")
    parser.add_argument("--tgt", default="en", metavar="CODE", help="with files: the language of the hypotheses (en)")
    parser.add_argument("--sentences", type=int, default=5, metavar="N", help="sentences won and lost to show (5)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


@cli.command
def main(argv: list[str]) -> None:
    args = parser().parse(argv)
    if len(args.systems) < 2:
        raise UserError("one system: name at least two")
    if bool(args.src) != bool(args.ref):
        raise UserError("--src and --ref go together: the sources, and their references")
    paths = list(map(Path, args.systems))
    if args.src:
        references = list(map(Path, args.ref))
        systems = [of_file(path, Path(args.src), references, args.tgt) for path in paths]
    else:
        systems = [of_evaluation(path) for path in paths]
    result = compare(systems)
    if args.json:
        print(json.dumps(result, ensure_ascii=False, indent=2))
    else:
        show(result, args.sentences)


def show(result: dict[str, Any], n_sentences: int) -> None:
    """Print the tables and the verdicts."""
    console = Console(soft_wrap=True, highlight=False)
    metrics = list(next(iter(result["scores"].values())))
    heads = [f"{metric} (95 %)" for metric in metrics]
    table = Table("system", *heads, *(f"p {metric}" for metric in metrics), title=f"{result['sentences']} sentences")
    for name, scores in result["scores"].items():
        cells = [f"{scores[metric]:.2f} ({result['intervals'][name][metric]})" for metric in metrics]
        both = [[result["p"][kind][name][metric] for kind in ("bs", "ar")] for metric in metrics]
        table.add_row(name, *cells, *("" if None in p else " / ".join(f"{each:.4f}" for each in p) for p in both))
    console.print(table)
    console.print("p: bootstrap / randomization.", *result["signatures"], sep="\n")
    for title, groups in result["groups"].items():
        table = Table(title, *next(iter(groups.values())), title="chrF")
        for group, row in groups.items():
            table.add_row(
                group, *(f"{value:.0f}" if key == "sentences" else f"{value:.2f}" for key, value in row.items())
            )
        console.print(table)
    for name, lists in result["won"].items():
        for which, rows in lists.items():
            table = Table("source", "reference", "1", name, title=f"{which} most by {name}")
            for row in rows[:n_sentences]:
                table.add_row(*row)
            console.print(table)
    console.print(*result["verdicts"], sep="\n")


if __name__ == "__main__":
    sys.exit(main())

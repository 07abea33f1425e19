"""Compare systems on one test set: python scripts/compare.py runs/a runs/b

A system is an evaluation folder of scripts/evaluate.py, or a run with one. With --corpus, or --src and --ref, it is a
bundle, which translates this test set; with --src and --ref it may be a file of hypotheses. Each is compared with the
first: BLEU, chrF, TER, significance, chrF by length and word frequency, largest gains and losses, conclusions.
"""

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from dragoman.commands import cli
from dragoman.data.text import check_aligned, clean_text, lines
from dragoman.errors import UserError
from dragoman.evaluation.scores import Outputs, compare, of_evaluation
from dragoman.evaluation.testsets import of_files
from dragoman.languages import reads
from dragoman.translation.translator import Translator
from evaluate import parse, test_set_of


@cli.command
def main(argv: list[str]) -> None:
    parser = cli.Parser(__doc__)
    parser.add_argument("systems", nargs="+", metavar="SYSTEM", help="an evaluation, run, bundle, or hypotheses file")
    parser.add_argument("--direction", metavar="SRC_TGT", help="of a bundle that translates in both")
    parser.add_argument("--tgt", default="en", metavar="CODE", help="with files: the language of the hypotheses (en)")
    args = parse(parser, argv)
    if len(args.systems) < 2:
        raise UserError("SYSTEM: only one. Name at least two")
    if args.split != "test" and not args.corpus:
        raise UserError("--split: needs --corpus. Without it, name evaluations: runs/a/evaluation/validation")
    show(compare([system(Path(name), args) for name in args.systems]))


def system(path: Path, args: argparse.Namespace) -> Outputs:
    """Return the translations of a system, read from files or made by its model."""
    if not args.src and not args.corpus:
        return of_evaluation(path)
    if args.src and path.is_file():
        check_aligned(Path(args.src), path)
        pairs = of_files(Path(args.src), list(map(Path, args.ref)))
        if not reads(args.tgt, "\n".join(pair.tgt for pair in pairs)):
            raise UserError(f"--tgt {args.tgt}: the references are not in its script. Name their language")
        return Outputs(path.name, args.tgt, pairs, list(map(clean_text, lines(path))))
    translator = Translator.load(path)
    _, pairs, direction = test_set_of(args, translator, path)
    results = translator.stream([pair.src for pair in pairs], direction=str(direction))
    return Outputs(str(path), direction.tgt, pairs, [clean_text(result.text) for result in results])


def show(result: dict[str, Any]) -> None:
    """Print the tables and the verdicts."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    rows: list[dict[str, str]] = []
    for name, scores in result["scores"].items():
        intervals = {f"{key} (95 %)": "{score:.2f} ({mean:.2f} ± {ci:.2f})".format(**s) for key, s in scores.items()}
        p = {f"p {k}": "" if None in s["p"] else "{:.4f} / {:.4f}".format(*s["p"]) for k, s in scores.items()}
        rows.append({"system": name} | intervals | p)
    console.print(grid(rows, f"{result['sentences']} sentences"))
    console.print("p: bootstrap / randomization.", *result["signatures"], sep="\n")
    for title, groups in result["groups"].items():
        rows = [{title: group} | {key: f"{each:.4g}" for key, each in row.items()} for group, row in groups.items()]
        console.print(grid(rows, "chrF"))
    for name, lists in result["won"].items():
        for which, texts in lists.items():
            if rows := [dict(zip(("source", "reference", "1", name), row, strict=True)) for row in texts]:
                console.print(grid(rows, f"largest {'gains' if which == 'won' else 'losses'} of {name}"))
    console.print(*itertools.chain(*result["verdicts"].values()), sep="\n")


def grid(rows: list[dict[str, str]], title: str | None = None) -> Table:
    """Return a table with a column for each key; long texts are folded."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    table = Table(*(Column(head, overflow="fold", min_width=8) for head in heads), title=title)
    for row in rows:
        table.add_row(*(row.get(head, "") for head in heads))
    return table


if __name__ == "__main__":
    sys.exit(main())

"""Report of runs: python scripts/report.py runs/zh_en

One run: a page, RUN/report.html, with samples, scores, curves, cost, settings, advice. Training writes it too.
Several runs: a table, the best first, with the minutes to reach given validation BLEU.
"""

import sys
from pathlib import Path

from rich.console import Console

from compare import grid
from dragoman.bundle import read_json
from dragoman.commands import cli


@cli.command
def main(argv: list[str]) -> None:
    parser = cli.Parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a training run")
    parser.add_argument("--language", default="en", choices=("en", "zh"), help="of the page (en)")
    parser.add_argument("--html", metavar="FILE", help="write to this file (one run: default RUN/report.html)")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    parser.add_argument("--levels", nargs="+", type=float, default=[20, 30, 35], help="BLEU to reach (20 30 35)")
    args = parser.parse_args(argv)
    runs = list(dict.fromkeys(map(Path, args.runs)))
    is_one, target = len(runs) == 1, args.html
    read_json(runs[0] / "metrics.json")  # an error before an import that takes seconds
    from dragoman.evaluation.report import leaderboard, page

    content = page(runs[0], args.language) if is_one else table(*leaderboard(runs, args.levels))
    if target or is_one:
        # RUN/report.html is replaced: training writes it, and an evaluation makes it outdated.
        path = target or str(runs[0] / "report.html")
        with cli.new_file(path, overwrite=args.overwrite or not target) as file:
            file.write(content)
        print(f"report: {path} (open it in a browser)")


def table(rows: list[dict[str, str]], notes: list[str]) -> bytes:
    """Print the table of several runs; return it as HTML."""
    width = None if sys.stdout.isatty() else 200
    console = Console(record=True, width=width, highlight=False, markup=False)
    console.print(grid(rows), *notes, sep="\n", soft_wrap=True)
    return console.export_html().encode()


if __name__ == "__main__":
    sys.exit(main())

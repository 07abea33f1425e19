"""Convert a model for another program: python scripts/export.py --model runs/zh_en --to ctranslate2

The export lies beside the weights, and translate.py uses it on a CPU, where it is several times faster. Before
anything is written, the same network in float32 must translate 100 sentences as torch does: those of --sentences, or
sentences of the phrasebook where the model reads Chinese or English; random pieces make up the number.
"""

import json
import sys
import time
from pathlib import Path

from dragoman import files
from dragoman.bundle import describe, locate
from dragoman.commands import cli
from dragoman.data.lines import lines
from dragoman.data.text import clean_text
from dragoman.errors import UserError, check_choice

FORMATS = ("ctranslate2",)


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__)
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a bundle, or a run that has one")
    parser.add_argument("--to", required=True, metavar="FORMAT", help=f"one of: {', '.join(FORMATS)}")
    parser.add_argument("--quantization", default="int8", metavar="TYPE", help="int8, int16, float32 (int8)")
    parser.add_argument("--sentences", metavar="FILE", help="lines that both must translate alike")
    return parser


@cli.command
def main(argv: list[str]) -> None:
    args = parser().parse(argv)
    check_choice("--to", args.to, FORMATS)
    from dragoman.translation.export import export_bundle

    bundle = locate(Path(args.model))
    if not bundle.is_dir():
        raise UserError(f"{bundle}: no bundle there. Runs keep theirs in runs/NAME/bundle")
    if args.sentences:
        sentences = [clean_text(line) for line in lines(Path(args.sentences))]
    else:
        sentences = phrases(describe(bundle).src)
    begin = time.monotonic()
    result = export_bundle(bundle, sentences, quantization=args.quantization)
    print(f"{result}, in {time.monotonic() - begin:.1f} s")


def phrases(language: str) -> list[str]:
    """Return the phrasebook's validation sentences of a language, if it has any."""
    path = files.shipped("data/phrasebook/written") / "validation.jsonl.gz"
    rows = [json.loads(line)["translation"] for line in lines(path)]
    return [row[language] for row in rows if language in row]


if __name__ == "__main__":
    sys.exit(main())

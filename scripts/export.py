"""Carry a model to another program: python scripts/export.py --model runs/zh_en --to ctranslate2

The export lies beside the weights, and translate.py takes it by itself on a CPU: it answers several times sooner.
Before anything is written, the same network in float32 must translate 100 sentences as torch does: those of
--sentences, or else of the phrasebook where the model reads Chinese or English; pieces drawn by chance make up the
number.
"""

import gzip
import json
import time
from pathlib import Path

from dragoman.doors import Parser, open_door, open_input, read_lines
from dragoman.errors import UserError, suggest

FORMATS = ("ctranslate2",)
PHRASES = Path(__file__).parents[1] / "data" / "phrasebook" / "validation.jsonl.gz"


def parser() -> Parser:
    parser = Parser("export.py", __doc__ or "")
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a bundle, or a run that has one")
    parser.add_argument("--to", required=True, metavar="FORMAT", help=f"one of: {', '.join(FORMATS)}")
    parser.add_argument(
        "--quantization", default="int8", metavar="TYPE", help="of the weights: int8, int16 or float32 (int8)"
    )
    parser.add_argument("--sentences", metavar="FILE", help="lines that both engines must translate alike")
    return parser


def main() -> None:
    args = parser().parse()
    if args.to not in FORMATS:
        raise UserError(f"--to {args.to}: choose one of {', '.join(FORMATS)}{suggest(args.to, FORMATS)}")
    from dragoman.description import describe, locate
    from dragoman.export.ctranslate2 import export, told

    bundle = locate(Path(args.model))
    if not bundle.is_dir():
        raise UserError(f"there is no bundle at {bundle}; runs keep theirs in runs/NAME/bundle")
    if args.sentences:
        with open_input(args.sentences) as file:
            sentences = list(read_lines(file))
    else:
        sentences = phrases(describe(bundle).src)
    begin = time.monotonic()
    made = export(bundle, sentences, quantization=args.quantization)
    print(f"{told(made)}, in {time.monotonic() - begin:.1f} s")


def phrases(language: str) -> list[str]:
    """The phrasebook's validation sentences of a language; none where it has no such."""
    with gzip.open(PHRASES, "rt", encoding="utf-8") as file:
        rows = [json.loads(row)["translation"] for row in file]
    return [row[language] for row in rows if language in row]


if __name__ == "__main__":
    open_door(main)

"""Translate text: python translate.py "好久不见"

N lines in, N lines out. Without --model the newest model under runs/ that reads the input's language is
taken. Text that begins with '-' goes after ' -- '.
"""

import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING

from dragoman.doors import (
    Parser,
    Progress,
    add_search_options,
    count_lines,
    load_translator,
    new_file,
    open_door,
    open_input,
    read_lines,
    search_config,
)
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.translator import Translation


def parser() -> Parser:
    parser = Parser("translate.py", __doc__.partition("\n\n")[2])
    parser.add_argument("text", nargs="*", help="each argument is one line; none: lines from a pipe on stdin")
    parser.add_argument("--model", metavar="FOLDER", help="a bundle, or a run that has one")
    parser.add_argument("--input", metavar="FILE", help="translate the lines of a file")
    parser.add_argument("--output", metavar="FILE", help="write there instead of stdout")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist already")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object per line: text, score, tokens ..."
    )
    parser.add_argument("--attention", metavar="PNG", help="picture where the model looked (for one line)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    parser.add_argument("--batch", type=int, default=4096, metavar="N", help="pieces computed at once (4096)")
    add_search_options(parser)
    return parser


def main() -> None:
    args = (doorway := parser()).parse()
    if not args.text and not args.input and sys.stdin.isatty():
        doorway.print_help(sys.stderr)
        sys.exit(2)
    if args.text and args.input:
        raise UserError("give either text or --input, not both")
    if args.batch < 1:
        raise UserError(f"--batch {args.batch}: at least 1 piece must be computed at once")
    if args.attention and len(args.text) != 1:
        raise UserError("--attention pictures one sentence: give it as the one argument")
    with ExitStack() as opened:
        stream = opened.enter_context(open_input(args.input)) if args.input else sys.stdin.buffer
        lines: Iterable[str] = args.text or read_lines(stream)
        picture = (
            opened.enter_context(new_file(args.attention, overwrite=args.overwrite))
            if args.attention
            else None
        )
        out: IO[bytes] = sys.stdout.buffer
        if args.output:
            out = opened.enter_context(new_file(args.output, overwrite=args.overwrite))
        translator, lines = load_translator(args.model, lines, args.device)
        search = search_config(args, translator.bundle.search)
        progress = Progress(count_lines(args.input)) if args.input else None
        found = translator.stream(lines, search, batch_tokens=args.batch, progress=progress)
        for translation in found:
            out.write((as_json(translation) if args.json else as_text(translation)).encode() + b"\n")
            if picture:
                from dragoman.picture import attention_figure

                seen = translator.attend(args.text[0], translation.text)
                picture.write(attention_figure(seen.weights, seen.rows, seen.columns, title=translation.text))
        out.flush()
        if progress:
            progress.finish()


def as_text(translation: "Translation") -> str:
    """One line, whatever is in it; several hypotheses stand side by side, separated by tabs."""
    return "\t".join(" ".join(hypothesis.text.splitlines()) for hypothesis in translation.hypotheses)


def as_json(translation: "Translation") -> str:
    hypotheses = [vars(hypothesis) for hypothesis in translation.hypotheses]
    several = {"hypotheses": hypotheses} if len(hypotheses) > 1 else {}
    return json.dumps(hypotheses[0] | several, ensure_ascii=False)


if __name__ == "__main__":
    open_door(main)

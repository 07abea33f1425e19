"""Translate text: dragoman-translate "好久不见"

In a checkout: python translate.py "好久不见".

N lines in, N lines out. Without --model: the newest model under runs/ for the script of the input, or a pretrained one.
Text that begins with '-' goes after ' -- '.
"""

import argparse
import json
import sys
from contextlib import ExitStack
from typing import IO, Any

import dragoman
from dragoman.commands import cli
from dragoman.errors import UserError
from dragoman.languages import Direction
from dragoman.translation.translator import Translation, Translator


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("text", nargs="*", default=[], help="each argument is one line; none: lines from stdin")
    source.add_argument("--input", metavar="FILE", help="translate the lines of a file, plain or .gz")
    parser.add_argument("--model", metavar="FOLDER", help="a bundle, or a run that has one")
    parser.add_argument("--output", metavar="FILE", help="write there instead of stdout")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist already")
    parser.add_argument("--json", action="store_true", help="a JSON object per line: text, score, tokens ...")
    parser.add_argument("--strict", action="store_true", help="exit with code 3 if a translation has a warning")
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--attention", metavar="FILE", help="attention of one line: a .png or a .html page")
    task.add_argument("--trace", action="store_true", help="steps of a search (greedy, or --beam N); --output: page")
    task.add_argument("--embed", metavar="NPY", help="write a vector for each line; translate nothing")
    parser.add_argument("--pooling", default="mean", metavar="NAME", help="with --embed: mean, first, attention (mean)")
    parser.add_argument("--version", action="version", version=dragoman.__version__)
    cli.add_translation_options(parser)
    return parser


@cli.command
def main(argv: list[str]) -> None:
    args = parser().parse_args(argv)
    if (args.attention or args.trace) and len(args.text) != 1:
        raise UserError("--attention, --trace: only for one sentence. Give it as the one argument")
    if args.attention and not args.attention.lower().endswith((".png", ".html")):
        raise UserError("--attention: name a .png (picture of the last layer) or a .html (all layers and heads)")
    if args.trace and args.output and not args.output.lower().endswith(".html"):
        raise UserError(f"--trace: --output is a .html page (found {args.output})")
    if args.embed and args.output:
        raise UserError("--embed: translates nothing. Remove --output")
    if not args.text and not args.input and sys.stdin.isatty():
        raise UserError("no text: give it as an argument, by --input FILE, or by a pipe (see --help)")
    with ExitStack() as opened:
        # Opened before a model is loaded: a file that cannot be written is reported at once.
        paths = args.embed or args.output, args.attention
        out, picture = (path and opened.enter_context(cli.new_file(path, overwrite=args.overwrite)) for path in paths)
        translator, lines, direction = cli.load_translator(args, args.text or cli.read_lines(args.input))
        settings: dict[str, Any] = {"batch_tokens": args.batch, "direction": str(direction)}
        # On a terminal the translations themselves show the progress.
        if args.input and (out or not sys.stdout.isatty()):
            settings["progress"] = opened.enter_context(cli.progress_bar(cli.count_lines(args.input)))
        if args.embed and out:
            import numpy

            vectors = translator.embed(lines, args.pooling, **settings).numpy()
            numpy.save(out, vectors)  # one float32 array (lines, d_model)
            print(f"{args.embed}: {len(vectors):,} vectors of {vectors.shape[1]} numbers", file=sys.stderr)
            return
        search, n_warnings = cli.search_config(args, translator.bundle.search), 0
        if args.trace:
            trace = translator.trace(args.text[0], search, args.beam_size or 1, direction=str(direction))
            show(trace, out, direction)
            return
        for number, result in enumerate(translator.stream(lines, search, scored=args.json, **settings), 1):
            for message in result.warnings:
                print(f"warning: line {number}: {message}", file=sys.stderr)
            n_warnings += len(result.warnings)
            line = as_json(result) if args.json else as_text(result)
            (out or sys.stdout.buffer).write(line.encode() + b"\n")
            if picture:
                picture.write(attention(translator, args, result.text, direction))
    if args.strict and n_warnings:
        sys.exit(3)


def attention(translator: Translator, args: argparse.Namespace, translation: str, languages: Direction) -> bytes:
    """Return the attention as a page or as a picture, by the suffix of --attention."""
    attended = translator.attend(args.text[0], translation, direction=str(languages))
    if args.attention.lower().endswith(".html"):
        from dragoman.explain.trace import attention_page

        return attention_page(attended, languages, source=args.text[0], translation=translation)
    from dragoman.explain.picture import attention_figure

    pieces = attended.pieces
    return attention_figure(attended.maps["cross"][-1], pieces["tgt_out"], pieces["src"], title=translation)


def show(trace: dict[str, Any], out: IO[bytes] | None, languages: Direction) -> None:
    """Print a trace, or write it to `out` as a page."""
    from rich.console import Console

    from dragoman.explain.page import render
    from dragoman.explain.trace import as_text

    if out:
        out.write(render("explain/trace.html", trace=trace, languages=languages))
    else:
        Console().print(as_text(trace), soft_wrap=True)


def as_text(translation: Translation) -> str:
    """Return the different hypotheses as one line, separated by tabs."""
    return "\t".join(dict.fromkeys(" ".join(hypothesis.text.splitlines()) for hypothesis in translation.hypotheses))


def as_json(translation: Translation) -> str:
    """Return JSON: the best hypothesis, warnings, and several hypotheses as a list."""
    best, *others = hypotheses = [vars(hypothesis) for hypothesis in translation.hypotheses]
    record = {**best, "warnings": translation.warnings}
    return json.dumps(record | ({"hypotheses": hypotheses} if others else {}), ensure_ascii=False)

"""Translate text: python translate.py "好久不见"

N lines in, N lines out. Without --model the newest model under runs/ that reads the input's language is
taken. Text that begins with '-' goes after ' -- '.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dragoman.doors import (
    SEARCH_OPTIONS,
    Parser,
    Progress,
    add_direction_option,
    add_engine_options,
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
    from dragoman.translator import Translation, Translator

FOR_TORCH = ("sample", "attention", "embed")  # options for what CTranslate2 does not do


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
    parser.add_argument(
        "--attention", metavar="FILE", help="where the model looked, for one line: a .png or .html"
    )
    parser.add_argument(
        "--embed", metavar="NPY", help="write a vector for each line there; translate nothing"
    )
    parser.add_argument("--pooling", metavar="NAME", help="with --embed: mean, first or attention (mean)")
    parser.add_argument("--batch", type=int, default=4096, metavar="N", help="pieces computed at once (4096)")
    add_engine_options(parser)
    add_direction_option(parser)
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
    check_what_is_shown(args)
    with ExitStack() as opened:
        stream = opened.enter_context(open_input(args.input)) if args.input else sys.stdin.buffer
        lines: Iterable[str] = args.text or read_lines(stream)
        beside = args.attention or args.embed
        shown = opened.enter_context(new_file(beside, overwrite=args.overwrite)) if beside else None
        out: IO[bytes] = sys.stdout.buffer
        if args.output:
            out = opened.enter_context(new_file(args.output, overwrite=args.overwrite))
        translator, lines, args.direction = load_translator(
            args.model,
            lines,
            args.device,
            args.direction,
            engine=args.engine,
            task=next((f"--{name}" for name in FOR_TORCH if getattr(args, name)), None),
        )
        search = search_config(args, translator.bundle.search)
        progress = Progress(count_lines(args.input)) if args.input else None
        if shown and args.embed:
            embed(translator, lines, args, shown, progress)
            return
        found = translator.stream(
            lines,
            search,
            batch_tokens=args.batch,
            direction=args.direction,
            scored=args.json,
            progress=progress,
        )
        for translation in found:
            out.write((as_json(translation) if args.json else as_text(translation)).encode() + b"\n")
            if shown:
                shown.write(attention(translator, args, translation.text))
        out.flush()
        if progress:
            progress.finish()


def check_what_is_shown(args: argparse.Namespace) -> None:
    """Refuses what cannot be: found out before a model is loaded."""
    if args.attention and args.output and os.path.realpath(args.attention) == os.path.realpath(args.output):
        raise UserError(f"--attention and --output both name {args.output}: one file cannot hold both")
    if args.attention and len(args.text) != 1:
        raise UserError("--attention pictures one sentence: give it as the one argument")
    if args.attention and Path(args.attention).suffix.lower() not in (".png", ".html"):
        raise UserError(
            f"--attention {args.attention}: the name ends in .png for a picture of the last layer, "
            "or in .html for a page with every layer and head"
        )
    if args.pooling and not args.embed:
        raise UserError("--pooling only means something with --embed")
    if args.embed:
        translating = ("attention", "output", "json", *SEARCH_OPTIONS)
        clash = next((name for name in translating if getattr(args, name) not in (None, False)), None)
        if clash:
            raise UserError(f"--embed translates nothing: it does not go with --{clash.replace('_', '-')}")


def embed(
    translator: "Translator",
    lines: Iterable[str],
    args: argparse.Namespace,
    file: IO[bytes],
    progress: Progress | None,
) -> None:
    """The vectors of the lines as one float32 array (lines, d_model), which numpy.load reads."""
    import numpy as np

    vectors = translator.embed(
        lines,
        args.pooling or "mean",
        batch_tokens=args.batch,
        direction=args.direction,
        progress=progress,
    )
    np.save(file, vectors.numpy())
    if progress:
        progress.finish()
    print(f"{args.embed}: {len(vectors):,} vectors of {vectors.shape[1]} numbers", file=sys.stderr)


def attention(translator: "Translator", args: argparse.Namespace, translation: str) -> bytes:
    """The file asked for: a picture or a page, by its suffix."""
    (line,) = args.text
    seen = translator.attend(line, translation, direction=args.direction)
    if args.attention.lower().endswith(".html"):
        from dragoman.page import attention_page

        return attention_page(
            seen.maps,
            seen.pieces,
            source=line,
            translation=translation,
            languages=translator.direction(args.direction, line),
        )
    from dragoman.picture import attention_figure

    return attention_figure(
        seen.maps["cross"][-1], seen.pieces["tgt_out"], seen.pieces["src"], title=translation
    )


def as_text(translation: "Translation") -> str:
    """One line, whatever is in it; several hypotheses stand side by side, separated by tabs."""
    return "\t".join(" ".join(hypothesis.text.splitlines()) for hypothesis in translation.hypotheses)


def as_json(translation: "Translation") -> str:
    hypotheses = [vars(hypothesis) for hypothesis in translation.hypotheses]
    several = {"hypotheses": hypotheses} if len(hypotheses) > 1 else {}
    return json.dumps(hypotheses[0] | several, ensure_ascii=False)


if __name__ == "__main__":
    open_door(main)

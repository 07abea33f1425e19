"""Shared parts of the command lines: options, files, progress, exit codes.

Input lines end only at LF, so `wc -l` counts the same lines. Bytes that are not UTF-8 become U+FFFD.
torch is not imported here, so --help and errors in options appear at once.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, NoReturn

from dragoman import files
from dragoman.bundle import newest
from dragoman.config import SearchConfig
from dragoman.errors import UserError
from dragoman.languages import Direction, reads
from dragoman.translation.translator import Translator

# option: type, placeholder, help
SEARCH_OPTIONS: dict[str, tuple[type, str, str]] = {
    "beam": (int, "N", "beam search with N hypotheses; 1 is greedy"),
    "n_best": (int, "N", "N translations of each line, best first"),
    "length_penalty": (float, "X", "divide scores by length^X"),
    "temperature": (float, "X", "with --sample: values above 1 are more random (1)"),
    "top_k": (int, "N", "with --sample: keep the N most probable pieces"),
    "top_p": (float, "X", "with --sample: keep the fewest pieces of total probability X"),
    "seed": (int, "N", "with --sample: random seed (1)"),
}
_SAMPLE_LINES = 1_000  # first lines, whose script decides the language of the input


class Parser(argparse.ArgumentParser):
    """Parser with one-line errors and without abbreviated options."""

    def __init__(self, description: str | None) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, allow_abbrev=False, formatter_class=layout)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")

    def complete(self) -> None:
        """If a shell asks for the next word (the Tab key), answer and exit."""
        if "_ARGCOMPLETE" in os.environ:
            import argcomplete

            argcomplete.autocomplete(self)

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Return the arguments. Raises UserError for an unknown option."""
        self.complete()
        args, unknown = self.parse_known_args(argv)
        if unknown:
            raise UserError(f"{unknown[0]}: unknown option. Write ' -- ' before text that begins with '-'")
        return args


def command(main: Callable[[list[str]], object]) -> Callable[..., int]:
    """Turn `main(argv)` into a program that returns its exit code.

    A UserError is printed in one line, and the exit code is 2. Ctrl-C gives 130. A closed pipe is no error and gives 0.
    """

    @functools.wraps(main)
    def program(argv: list[str] | None = None) -> int:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(encoding="utf-8", errors="replace")
        try:
            main(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()
        except UserError as error:
            # Control characters in a file's name or content must not reach the terminal.
            print("error:", re.sub(r"[\x00-\x1f\x7f-\x9f]", "\ufffd", str(error)), file=sys.stderr)
            return 2
        except OSError as error:
            if error.filename is None:
                # Python flushes stdout again at exit. The null device prevents a second error there.
                with contextlib.suppress(OSError, ValueError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):
                return 0
            where = f"cannot open {error.filename}" if error.filename else "cannot write the output"
            print(f"error: {where}: {error.strerror or error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            return 130
        except SystemExit as end:  # argparse's --help and --version, and a stopped training
            return int(end.code or 0)
        return 0

    return program


def add_translation_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the engine and the search."""
    engines = "torch, ctranslate2, or auto: ctranslate2 on a CPU if the model has an export, else torch (auto)"
    parser.add_argument("--engine", default="auto", metavar="NAME", help=engines)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (auto)")
    parser.add_argument("--direction", metavar="SRC_TGT", help="e.g. zh_en (default: by the input's script)")
    parser.add_argument("--batch", type=int, default=4096, metavar="N", help="pieces per batch (4096)")
    group = parser.add_argument_group("search (default: the settings of the model)")
    group.add_argument("--sample", action="store_true", help="sample from the model's distribution")
    for name, (kind, placeholder, text) in SEARCH_OPTIONS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=placeholder, help=text)


def check_at_least_one(args: argparse.Namespace, *options: str) -> None:
    """Raise UserError for an option that is given and smaller than 1."""
    for option in options:
        value = getattr(args, option.replace("-", "_"))
        if value is not None and value < 1:
            raise UserError(f"--{option} {value}: must be at least 1")


def search_config(args: argparse.Namespace, default: SearchConfig) -> SearchConfig:
    """Return `default` with the options applied. Raises UserError for a conflict."""
    given = {key: getattr(args, key) for key in SEARCH_OPTIONS if getattr(args, key) is not None}
    for key in ("temperature", "top_k", "top_p", "seed"):
        if key in given and not args.sample:
            raise UserError(f"--{key.replace('_', '-')}: only for sampling. Add --sample")
    if args.sample and given.keys() & {"beam", "length_penalty"}:
        raise UserError("--sample: does not go with --beam or --length-penalty, the options of beam search. Remove one")
    check_at_least_one(args, "beam")
    beam = given.pop("beam", None)
    changes = {"n_best": 1, **given}
    if args.sample:
        changes["kind"] = "sample"
    elif beam or changes["n_best"] > 1:
        changes |= {"kind": "beam", "beam_size": beam or max(default.beam_size, changes["n_best"])}
    return dataclasses.replace(default, **changes)


def read_lines(stream: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a binary stream without their line ends."""
    for line in stream:
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")


def count_lines(path: str) -> int:
    """Count the lines that `read_lines` yields."""
    with open(path, "rb") as file:
        return sum(1 for _ in file)


@contextlib.contextmanager
def new_file(path: str, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """Yield a file that appears as `path` when it is complete; links are followed."""
    target = Path(os.path.realpath(path))
    if target.exists() and not (overwrite and target.is_file()):
        hint = "Use --overwrite to replace it" if target.is_file() else "It is not a file: name another path"
        raise UserError(f"{path}: exists already. {hint}")
    with files.replacing(target) as file:
        yield file


def load_translator(args: argparse.Namespace, lines: Iterable[str]) -> tuple[Translator, Iterator[str], Direction]:
    """Load --model, or the newest model under runs/ that fits the input.

    Returns the translator, all lines again, and their direction.
    """
    rest = iter(lines)
    first = list(itertools.islice(rest, _SAMPLE_LINES))
    sample = "\n".join(first)  # not the first line alone, which may be an English title of a Chinese text
    wanted = f"--direction {args.direction}" if args.direction else "this input"

    def fits(known: Direction) -> bool:
        return str(known) == args.direction if args.direction else reads(known.src, sample)

    folder = Path(args.model) if args.model else newest(Path("runs"), fits, wanted)
    translator = Translator.load(folder, args.device, engine=args.engine)
    direction = translator.direction(args.direction, sample)
    if not args.model or len(translator.bundle.directions) > 1:
        print(f"model: {folder} ({direction.src}-{direction.tgt})", file=sys.stderr)
    if not reads(direction.src, sample):
        print(f"note: {folder} translates from '{direction.src}', but the input is in another script", file=sys.stderr)
    return translator, itertools.chain(first, rest), direction


@contextlib.contextmanager
def progress_bar(total: int, *, hidden: bool = False) -> Iterator[Callable[[int], object]]:
    """Show a bar and the speed; yield a function that takes the number of lines done."""
    from rich import progress
    from rich.console import Console

    rate = progress.TextColumn("{task.fields[rate]:,.1f} lines/s")
    columns = progress.BarColumn(), progress.MofNCompleteColumn(), rate, progress.TimeRemainingColumn()
    hidden, begin = hidden or not sys.stderr.isatty(), time.monotonic()
    with progress.Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=total, rate=0.0)
        yield lambda done: bar.update(task, completed=done, rate=done / (time.monotonic() - begin))
    done, seconds = bar.tasks[0].completed, time.monotonic() - begin
    unit = "line" if done == 1 else "lines"
    print(f"{done:,} {unit} in {seconds:.1f} s ({done / seconds:,.1f} lines/s)", file=sys.stderr)

"""Shared parts of the command lines: options, files, progress, exit codes.

Input lines end only at LF, so `wc -l` counts the same lines. Bytes that are not UTF-8 become U+FFFD (data/text.py).
torch is not imported here, so --help and errors in options appear at once.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from dragoman import files
from dragoman.bundle import newest
from dragoman.config import SearchConfig
from dragoman.data.text import lines
from dragoman.errors import UserError
from dragoman.languages import Direction, reads
from dragoman.translation.translator import Translator

_SAMPLE_LINES = 1_000  # first lines, whose script decides the language of the input


class Parser(argparse.ArgumentParser):
    """Parser with one-line errors and without abbreviated options."""

    def __init__(self, description: str | None) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, allow_abbrev=False, formatter_class=layout)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; if a shell requests completions (the Tab key), print them and exit."""
        # argcomplete itself calls this with a namespace.
        if namespace is None and "_ARGCOMPLETE" in os.environ:
            import argcomplete

            argcomplete.autocomplete(self)
        return super().parse_known_args(args, namespace)


def command(main: Callable[[list[str]], object]) -> Callable[..., int]:
    """Turn `main(argv)` into a program that returns its exit code.

    A UserError is printed in one line, and the exit code is 2. Ctrl-C gives 130. A closed pipe is no error and gives 0.
    """

    @functools.wraps(main)
    def program(argv: list[str] | None = None) -> int:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
        try:
            main(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()
        except UserError as error:
            print("error:", error, file=sys.stderr)
            return 2
        except BrokenPipeError:
            # Python flushes stdout again at exit. The null device prevents a second error there.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            print(f"error: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
            return 2
        except ModuleNotFoundError as error:  # a package of an optional extra (pyproject.toml)
            print(f"error: {error.name} is not installed. Run `pip install {error.name}`", file=sys.stderr)
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
    parser.add_argument("--batch", type=positive, default=4096, metavar="N", help="pieces per batch (4096)")
    group = parser.add_argument_group("search (default: the settings of the model)")
    kind = group.add_mutually_exclusive_group()
    kind.add_argument("--sample", action="store_true", help="sample from the model's distribution")
    kind.add_argument("--beam", dest="beam_size", type=int, metavar="N", help="beam search with N beams; 1 is greedy")
    group.add_argument("--n-best", type=positive, metavar="N", help="N translations of each line, best first (1)")
    group.add_argument("--length-penalty", type=float, metavar="X", help="divide scores by length^X")
    group.add_argument("--temperature", type=float, metavar="X", help="with --sample: above 1 is more random (1)")
    group.add_argument("--top-k", type=int, metavar="N", help="with --sample: keep the N most probable pieces")
    group.add_argument("--top-p", type=float, metavar="X", help="with --sample: keep the fewest of total probability X")
    group.add_argument("--seed", type=int, metavar="N", help="with --sample: random seed (1)")


def positive(text: str) -> int:
    """Type of an option: an integer of at least 1."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def search_config(args: argparse.Namespace, default: SearchConfig) -> SearchConfig:
    """Return `default` with the options applied. Raises UserError for a conflict."""
    given = {key: value for key, value in vars(args).items() if value is not None and key in vars(default)}
    if not args.sample and given.keys() & {"temperature", "top_k", "top_p", "seed"}:
        raise UserError("--temperature, --top-k, --top-p, --seed: only for sampling. Add --sample")
    changes = {"n_best": 1, **given}
    if args.sample:
        changes["kind"] = "sample"
    elif "beam_size" in given or changes["n_best"] > 1:
        changes = {"beam_size": max(default.beam_size, changes["n_best"]), **changes, "kind": "beam"}
    return dataclasses.replace(default, **changes)


def read_lines(path: str | None) -> Iterator[str]:
    """Yield the lines of a file, plain or gzip; without a path those of stdin."""
    return lines(Path(path or "stdin"), None if path else sys.stdin.buffer)


def count_lines(path: str) -> int | None:
    """Count the lines of a file; None for a pipe, which is read once."""
    return sum(1 for _ in lines(Path(path))) if os.path.isfile(path) else None


def new_file(path: str, *, overwrite: bool) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Open a file that appears as `path` when it is complete; links are followed."""
    target = Path(os.path.realpath(path))
    if target.exists() and not (overwrite and target.is_file()):
        raise UserError(f"{path}: exists already. Use --overwrite to replace a file, or name another path")
    return files.replacing(target)


def load_translator(args: argparse.Namespace, lines: Iterable[str]) -> tuple[Translator, Iterator[str], Direction]:
    """Load --model, or the newest model under runs/ that fits the input.

    Returns the translator, the lines (those read here included), and their direction.
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
        print(f"model: {folder} ({direction})", file=sys.stderr)
    return translator, itertools.chain(first, rest), direction


@contextlib.contextmanager
def progress_bar(total: int | None) -> Iterator[Callable[[int], object]]:
    """Show a bar and the speed; yield a function that takes the lines done."""
    from rich import progress
    from rich.console import Console

    rate = progress.TextColumn("{task.fields[rate]:,.1f} lines/s")
    columns = progress.BarColumn(), progress.MofNCompleteColumn(), rate, progress.TimeRemainingColumn()
    console = Console(stderr=True)
    with progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total, rate=0.0)
        yield lambda done: bar.update(task, completed=done, rate=done / (bar.tasks[0].elapsed or 1.0))
    done, seconds = bar.tasks[0].completed, bar.tasks[0].elapsed or 1.0
    unit = "line" if done == 1 else "lines"
    print(f"{done:,} {unit} in {seconds:.1f} s ({done / seconds:,.1f} lines/s)", file=sys.stderr)

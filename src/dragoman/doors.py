"""What the command lines have in common: options, lines in, files out, progress.

The doors (translate.py, scripts/) stay short because this is here. It imports nothing heavy, so that --help
and a mistyped option are answered at once; and it refuses to know how anything is translated.

Lines are separated by the byte LF and by nothing else: U+2028, form feeds and the like stay inside a line, or
the number of lines would differ from what `wc -l` says. What is not UTF-8 becomes U+FFFD.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import itertools
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from dragoman import durable
from dragoman.errors import UserError, plain_errors
from dragoman.languages import reads

if TYPE_CHECKING:
    from dragoman.search.hypothesis import SearchConfig
    from dragoman.translator import Translator

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of a disk: nobody's fault in here
SEARCH_OPTIONS = ("beam", "n_best", "length_penalty", "sample", "temperature", "top_k", "top_p", "seed")
_PEEKED = 1_000  # lines looked at to see which language the input is in


class Parser(argparse.ArgumentParser):
    """Whose complaints are one line, like all others, and who does not guess what --bea might mean."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):  # "argument --beam: expected one argument"
            option = message.split(":")[0].rpartition(" ")[2]
            message += f"; a value that begins with '-' is written {option}=VALUE"
        raise UserError(f"{message} (see {self.prog} --help)")

    def parse(self, argv: list[str] | None = None) -> argparse.Namespace:
        """All arguments; text taken for an option is told where it belongs."""
        args, unknown = self.parse_known_args(argv)
        if unknown:
            first = next((word for word in unknown if word.startswith("-")), unknown[0])
            raise UserError(f"there is no option '{first}'; text that begins with '-' goes after ' -- '")
        return args


def open_door(main: Callable[[], None]) -> None:
    """Run a door: mistakes in one line and exit code 2, a closed pipe quietly, Ctrl-C without a traceback."""
    try:
        with plain_errors():
            _open_what_is_closed()
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
            try:
                main()
                sys.stdout.flush()
            except BrokenPipeError:
                _silence_stdout()
                sys.exit(0)
            except PermissionError as error:
                raise UserError(f"cannot open {error.filename}: {error.strerror}") from error
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                _silence_stdout()
                raise UserError(f"cannot write the output: {error.strerror}") from error
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


def _open_what_is_closed() -> None:
    """A standard stream that whoever started the program has closed is like /dev/null, or the next file would be it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # to stay open


def _silence_stdout() -> None:
    """Python flushes stdout once more on its way out: give it somewhere to write to."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """Options for `search_config`; none of them given leaves the model's own search."""
    group = parser.add_argument_group("search (default: as the model was trained to be used)")
    group.add_argument("--beam", type=int, metavar="N", help="beam search with N hypotheses; 1 is greedy")
    group.add_argument("--n-best", type=int, metavar="N", help="N translations of each line, best first")
    group.add_argument("--length-penalty", type=float, metavar="X", help="scores are divided by length^X")
    group.add_argument("--sample", action="store_true", help="draw from the model's distribution")
    group.add_argument("--temperature", type=float, metavar="X", help="with --sample: below 1 is bolder (1)")
    group.add_argument("--top-k", type=int, metavar="N", help="with --sample: only the N likeliest pieces")
    group.add_argument("--top-p", type=float, metavar="X", help="with --sample: the likeliest with total X")
    group.add_argument("--seed", type=int, metavar="N", help="with --sample: the same draws again (1)")


def add_direction_option(parser: argparse.ArgumentParser) -> None:
    """For models of both directions; any other accepts its own."""
    parser.add_argument(
        "--direction", metavar="SRC_TGT", help="e.g. zh_en (default: by the script of the input)"
    )


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """By which of the two engines, and where."""
    parser.add_argument(
        "--engine",
        default="auto",
        metavar="NAME",
        help="torch, ctranslate2, or auto: CTranslate2 on a CPU, where the model has an export for it (auto)",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")


def search_config(args: argparse.Namespace, default: SearchConfig) -> SearchConfig:
    """`default` with what the options change. Raises UserError for contradictions and impossible values."""
    sampling = {key: getattr(args, key) for key in ("temperature", "top_k", "top_p", "seed")}
    sampling = {key: value for key, value in sampling.items() if value is not None}
    if sampling and not args.sample:
        option = "--" + next(iter(sampling)).replace("_", "-")
        raise UserError(f"{option} only means something with --sample")
    if args.sample and (args.beam is not None or args.length_penalty is not None):
        raise UserError("--sample draws and does not search: it takes neither --beam nor --length-penalty")
    changes: dict[str, object] = dict(sampling)
    if args.length_penalty is not None:
        changes["length_penalty"] = args.length_penalty
    n_best = args.n_best if args.n_best is not None else 1
    changes["n_best"] = n_best
    if args.sample:
        changes["kind"] = "sample"
    elif args.beam is not None:
        if args.beam < 1:
            raise UserError(f"--beam {args.beam}: a beam holds at least 1 hypothesis")
        changes |= {"kind": "beam", "beam_size": args.beam}
    elif n_best > 1:
        changes |= {"kind": "beam", "beam_size": max(default.beam_size, n_best)}
    return dataclasses.replace(default, **changes)  # type: ignore[arg-type]


def read_lines(source: IO[bytes]) -> Iterator[str]:
    """The lines of a binary stream, as they come."""
    for line in source:
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")


def open_input(path: str) -> IO[bytes]:
    """A file for `read_lines`."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def count_lines(path: str) -> int | None:
    """How many lines `read_lines` will give; None for what can be read only once."""
    if not Path(path).is_file():
        return None
    count, last = 0, b"\n"
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


@contextmanager
def new_file(path: str | Path, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """A file that appears under its name only when it is complete, and never in place of another unasked.

    Of a link, what it leads to is written; a pipe or a device is written into, for there is nothing to replace.
    """
    if _is_stream(path):
        with _into(path) as stream:
            yield stream
        return
    if os.path.exists(path) and not os.path.isfile(path):
        what = "a folder" if os.path.isdir(path) else "not a file"
        raise UserError(f"{path} is {what} and is left as it is: name a file to write")
    if os.path.exists(path) and not overwrite:
        raise UserError(f"{path} exists already and is left as it is; --overwrite replaces it")
    target = Path(os.path.realpath(path) if os.path.islink(path) else path)
    with _stopped_in_order(), durable.replacing(target, among_others=True) as file:
        yield file  # type: ignore[misc]  # it can be written to, which is all that is asked of it


@contextmanager
def _stopped_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end the program as Ctrl-C does, so that nothing half written stays behind."""

    def stop(signum: int, frame: object) -> NoReturn:
        sys.exit(128 + signum)

    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():  # to which nobody can send one
        signals = []
    caught = [signum for signum in signals if signal.getsignal(signum) == signal.SIG_DFL]  # nohup stays nohup
    for signum in caught:
        signal.signal(signum, stop)
    try:
        yield
    finally:
        for signum in caught:
            signal.signal(signum, signal.SIG_DFL)


def _is_stream(path: str | Path) -> bool:
    """Whether it is a pipe, a terminal or the like."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


@contextmanager
def _into(path: str | Path) -> Iterator[IO[bytes]]:
    try:
        with (
            open(path, "wb") as file,
            durable.Tally(file) as tally,
        ):  # numpy asks a bare file for its position
            yield tally  # type: ignore[misc]
    except BrokenPipeError:  # its reader does not want to hear any more
        raise
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def load_translator(
    model: str | None,
    lines: Iterable[str],
    device: str,
    direction: str | None = None,
    runs: Path = Path("runs"),
    *,
    engine: str = "auto",
    task: str | None = None,
) -> tuple[Translator, Iterator[str], str]:
    """The model asked for, or the newest for these lines; the lines, all of them; the direction they are taken in.

    That is `direction`, or the one that reads the script of the first lines. Raises UserError where none is had.
    `engine` and `task` as in engine.choose.
    """
    from dragoman.description import newest
    from dragoman.translator import Translator

    rest = iter(lines)
    peeked = list(itertools.islice(rest, _PEEKED))
    sample = "\n".join(peeked)  # not the first line alone: it may be an English title above a Chinese text
    if model:
        folder = Path(model)
    elif direction:
        folder = newest(runs, lambda known: str(known) == direction, f"--direction {direction}")
    else:
        folder = newest(runs, lambda known: reads(known.src, sample))
    translator = Translator.load(folder, device, engine=engine, task=task)
    taken = translator.direction(direction, sample)
    if not model or len(translator.bundle.directions) > 1:
        print(f"model: {folder} ({taken.src}-{taken.tgt})", file=sys.stderr)
    if not reads(taken.src, sample):
        print(f"note: {folder} reads '{taken.src}'; the input looks different", file=sys.stderr)
    return translator, itertools.chain(peeked, rest), str(taken)


class Progress:
    """Lines done, on stderr: a bar on a terminal, otherwise one sentence at the end."""

    def __init__(self, total: int | None) -> None:
        self.total, self.begin, self.drawn = total, time.monotonic(), 0.0
        self.done = 0.0

    def __call__(self, done: float) -> None:
        """`done` lines so far; a part of a line counts."""
        self.done = done
        now = time.monotonic()
        if not sys.stderr.isatty() or now - self.drawn < 0.1:
            return
        self.drawn = now
        text = f"{int(done):,} lines"
        if self.total:
            share = min(1.0, done / self.total)
            left = (now - self.begin) * (1 - share) / share if share else 0.0
            bar = ("█" * round(30 * share)).ljust(30, "·")
            text = f"{bar} {int(done):,}/{self.total:,} lines, {int(left) // 60}:{int(left) % 60:02} left"
        print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Wipe the bar and say what was done."""
        seconds = time.monotonic() - self.begin
        wipe = "\r\x1b[K" if sys.stderr.isatty() else ""
        rate = self.done / seconds if seconds else 0.0
        lines = "line" if self.done == 1 else "lines"
        print(f"{wipe}{int(self.done):,} {lines} in {seconds:.1f} s ({rate:,.1f} lines/s)", file=sys.stderr)

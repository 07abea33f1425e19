"""Run as a program: does to files what Dragoman does with files of their kind, each in a process with little memory.

A file that was taken ends its process with 0, one that was refused with 2 and one line, and one that got the better of
the program with anything else, which no test accepts.
"""

import json
import os
import resource
import sys
import tempfile
import traceback
from pathlib import Path

from dragoman.errors import UserError

ROOM = 1 << 30  # bytes that reading one small file may take


def take(kind: str, path: Path) -> None:
    """As the doors would."""
    if kind == "bundle":
        from dragoman import bundle

        bundle.load(path)
    elif kind == "checkpoint":
        sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
        import average

        average._of_checkpoint(path)
    elif kind == "weights":
        from dragoman import untrusted

        untrusted.read_weights(path, {"a": [2]})
    elif kind == "tokenizer":
        from dragoman.data.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(path)
        for text in ("好久不见 hello 12", "<s>\0x ▁ 🦖", "", " a" * 50):
            tokenizer.decode(tokenizer.encode(text))
        tokenizer.decode(range(min(len(tokenizer), 400)))
    elif kind == "vectors":
        from dragoman import vectors

        vectors.read(path, wanted={"好"}, most=1000)
    elif kind == "corpus":
        from dragoman.data.corpus import CorpusConfig
        from dragoman.data.sources import find

        for split in find(CorpusConfig(path=str(path)), "zh", "en", None).open().values():
            for _ in split.chunks:
                pass
    elif kind == "run":
        from dragoman.config import Config
        from dragoman.training.run import already_done, open_run

        config = Config()
        already_done(config, open_run(config, path))
    elif kind == "experiment":
        from dragoman import config, experiments

        config.CONFIGS = experiments.CONFIGS = path.parents[1]
        config.check([f"experiment={path.stem}"])
    else:
        raise ValueError(kind)


def main() -> None:
    """For each line "KIND PATH" on stdin, one of JSON: how a child ended that took the file, and what it said."""
    import datasets  # noqa: F401  # what a program takes for itself is not the file's doing
    import torch  # noqa: F401

    import dragoman.config  # noqa: F401

    for line in sys.stdin:
        kind, path = line.rstrip("\n").split(" ", 1)
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if not child:
                os._exit(outcome(kind, Path(path), said.fileno()))
            _, status, used = os.wait4(child, 0)
            said.seek(0)
            told = said.read().decode(errors="replace")
        print(json.dumps([os.waitstatus_to_exitcode(status), told, used.ru_maxrss]), flush=True)


def outcome(kind: str, path: Path, stderr: int) -> int:
    """What a process that takes the file leaves with."""
    os.dup2(stderr, 2)
    os.chdir(path.parent)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        take(kind, path)
    except UserError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


if __name__ == "__main__":
    main()

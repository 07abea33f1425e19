"""Work on the chunks of a corpus in several processes, with the results in order."""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import TypeVar

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")
# The first chunks are done without processes: for a small corpus, starting them takes longer than the work.
ALONE = 10


def in_order(function: Callable[[Chunk], Result], chunks: Iterable[Chunk], workers: int) -> Iterator[Result]:
    """Yield the result of each chunk, with few chunks in memory at a time.

    `workers` is the number of processes; 0 means as many as cores, at most eight. It does not change the results.
    """
    workers, remaining = workers or min(os.cpu_count() or 1, 8), iter(chunks)
    yield from map(function, islice(remaining, None if workers == 1 else ALONE))
    if not (following := list(islice(remaining, 1))):
        return
    # A forked process could wait for ever for a lock that one of our threads held.
    with ProcessPoolExecutor(workers, get_context("spawn"), _start) as pool:
        submitted = (pool.submit(function, chunk) for chunk in chain(following, remaining))
        waiting = deque(islice(submitted, 2 * workers))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(islice(submitted, 1))


def _start() -> None:
    """Make a worker process ignore Ctrl-C, and end with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=lambda: (parent_process().join(), os._exit(1)), daemon=True).start()  # type: ignore[union-attr]

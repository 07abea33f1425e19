"""Batches shared by concurrent requests.

Texts that arrive within a few milliseconds, or during the translation of an earlier batch, are translated together.
Each combination of options (direction, number of alternatives) has its own queue. One thread runs the engine.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

WINDOW = 0.005  # seconds
Translate = Callable[[Any, list[str]], Sequence[Any]]  # options, texts -> one result per text
Waiting = tuple[str, Future[Any]]  # a text and its result


class Batches:
    """Queues of texts in front of `translate`, which runs in a thread."""

    def __init__(self, translate: Translate, *, max_chars: int = 4096) -> None:
        self._translate, self._max_chars = translate, max_chars  # of a batch; the engine has its own budget of tokens
        # Requests append to the right, the thread takes from the left.
        self._queues: defaultdict[Hashable, deque[Waiting]] = defaultdict(deque)
        self._n_requests = 0  # in progress
        self._thread = ThreadPoolExecutor(1, "engine")

    async def translate(self, options: Hashable, texts: Sequence[str]) -> list[Any]:
        """Return one result per text. Raises the first error of these texts."""
        waiting: list[Waiting] = [(text, Future()) for text in texts]
        self._queues[options].extend(waiting)
        self._n_requests += 1
        try:
            # A request that is alone gains nothing by waiting for others.
            await asyncio.sleep(WINDOW if self._n_requests > 1 else 0)
            self._thread.submit(self._run, options)
            return await asyncio.gather(*(asyncio.wrap_future(future) for _, future in waiting))
        finally:  # after an error or a cancelled request, no batch takes the rest of its texts
            self._n_requests -= 1
            for _, future in waiting:
                future.cancel()

    async def alone(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the engine's thread, between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _run(self, options: Hashable) -> None:
        """Translate one batch; another one comes after other work of the thread."""
        queue, batch, n_chars = self._queues[options], list[Waiting](), 0
        while queue and (not batch or n_chars + len(queue[0][0]) <= self._max_chars):
            text, future = queue.popleft()
            if future.set_running_or_notify_cancel():
                batch.append((text, future))
                n_chars += len(text)
        if not batch:
            return
        results = self._results(options, [text for text, _ in batch])
        for (_, future), result in zip(batch, results, strict=True):
            (future.set_exception if isinstance(result, Exception) else future.set_result)(result)
        self._thread.submit(self._run, options)

    def _results(self, options: Hashable, texts: list[str]) -> list[Any]:
        """Return a result or an exception per text; after an error, one by one."""
        try:
            return list(self._translate(options, texts))
        except Exception as error:
            if len(texts) == 1:
                return [error]
            return [self._results(options, [text])[0] for text in texts]

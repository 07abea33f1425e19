"""Batches shared by concurrent requests.

Texts that arrive within a few milliseconds, or during the translation of an earlier batch, are translated together.
Each combination of options (direction, number of alternatives) has its own queue. One thread runs the engine.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

WINDOW = 0.005  # seconds
MAX_CHARS = 4096  # of a batch, and so at most as many pieces
Translate = Callable[[Any, list[str]], Sequence[Any]]  # options, texts -> one result per text
Waiting = tuple[str, asyncio.Future[Any]]  # a text and its result


class Batches:
    """Queues of texts in front of `translate`, which runs in a thread."""

    def __init__(self, translate: Translate, *, window: float = WINDOW, max_chars: int = MAX_CHARS) -> None:
        self._translate, self.window, self.max_chars = translate, window, max_chars
        self._queues: dict[Hashable, deque[Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._n_requests = 0  # in progress
        self._engine = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "engine")

    async def translate(self, options: Hashable, texts: Sequence[str]) -> list[Any]:
        """Return one result per text. Raises the first error of these texts."""
        loop = asyncio.get_running_loop()
        waiting: list[Waiting] = [(text, loop.create_future()) for text in texts]
        if options not in self._queues and waiting:
            self._queues[options] = deque()
            task = asyncio.create_task(self._run(options))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if waiting:
            self._queues[options].extend(waiting)
        self._n_requests += 1
        try:
            return await asyncio.gather(*(future for _, future in waiting))
        finally:  # after an error or a cancelled request, no batch takes the rest of its texts
            self._n_requests -= 1
            for _, future in waiting:
                future.cancel()

    async def alone(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the engine's thread, between two batches."""
        async with self._engine:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _run(self, options: Hashable) -> None:
        """Translate the queue of these options until it is empty."""
        loop, queue = asyncio.get_running_loop(), self._queues[options]
        while queue:
            # A request that is alone gains nothing by waiting for others.
            await asyncio.sleep(self.window if self._n_requests > 1 else 0)
            async with self._engine:
                batch = self._take(queue)
                texts = [text for text, _ in batch]
                results = await loop.run_in_executor(self._thread, self._results, options, texts)
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    (future.set_exception if isinstance(result, Exception) else future.set_result)(result)
        del self._queues[options]

    def _take(self, queue: deque[Waiting]) -> list[Waiting]:
        """Take texts of up to `max_chars`, at least one, and drop cancelled ones."""
        batch: list[Waiting] = []
        n_chars = 0
        while queue and (not batch or n_chars + len(queue[0][0]) <= self.max_chars):
            text, future = queue.popleft()
            if not future.done():
                batch.append((text, future))
                n_chars += len(text)
        return batch

    def _results(self, options: Hashable, texts: list[str]) -> list[Any]:
        """Return a result or an exception for each text.

        If the batch fails, each text is translated alone, so that only those that cause the error fail.
        """
        try:
            results = list(self._translate(options, texts))
            if len(results) != len(texts):
                raise RuntimeError(f"{len(results)} results for {len(texts)} texts")
            return results
        except Exception as error:
            if len(texts) == 1:
                return [error]
            return [self._results(options, [text])[0] for text in texts]

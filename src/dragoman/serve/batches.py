"""Batches shared by concurrent requests.

Texts that arrive during the translation of a batch are translated together. Each combination of options (direction,
number of alternatives) has its own queue. One thread runs the engine.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Translate = Callable[[Any, list[str]], Sequence[Any]]  # options, texts -> one result per text
Waiting = tuple[str, asyncio.Future[Any]]  # a text and its result


class Batches:
    """Queues of texts in front of `translate`, which runs in a thread."""

    def __init__(self, translate: Translate, *, max_chars: int = 4096) -> None:
        self._translate, self._max_chars = translate, max_chars  # of a batch; the engine has its own budget of tokens
        self._queues: defaultdict[Hashable, deque[Waiting]] = defaultdict(deque)
        self._workers: dict[Hashable, asyncio.Task[None]] = {}
        self._thread, self._turn = ThreadPoolExecutor(1, "engine"), asyncio.Lock()

    async def translate(self, options: Hashable, texts: Sequence[str]) -> list[Any]:
        """Return one result per text. Raises the first error of these texts."""
        loop, queue = asyncio.get_running_loop(), self._queues[options]
        waiting: list[Waiting] = [(text, loop.create_future()) for text in texts]
        if not queue:  # else its worker will take these, too
            self._workers[options] = loop.create_task(self._work(options))
        queue.extend(waiting)
        return await asyncio.gather(*(future for _, future in waiting))

    async def alone(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the engine's thread, between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _work(self, options: Hashable) -> None:
        """Translate one queue; between two batches, the others have their turn."""
        queue = self._queues[options]
        while queue:
            async with self._turn:
                batch, n_chars = list[Waiting](), 0
                while queue and (not batch or n_chars + len(queue[0][0]) <= self._max_chars):
                    text, future = queue.popleft()
                    if not future.done():  # its request was not cancelled
                        batch.append((text, future))
                        n_chars += len(text)
                results = await self.alone(self._results, options, [text for text, _ in batch]) if batch else []
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    (future.set_exception if isinstance(result, Exception) else future.set_result)(result)

    def _results(self, options: Hashable, texts: list[str]) -> list[Any]:
        """Return a result or an exception per text; after an error, one by one."""
        try:
            return list(self._translate(options, texts))
        except Exception as error:
            return [error] if len(texts) == 1 else [self._results(options, [text])[0] for text in texts]

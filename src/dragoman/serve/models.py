"""Models of the server, and the queues of texts in front of them.

A bundle that changed is loaded again. During training it has no CTranslate2 export, so torch translates; the export at
the end counts as a change. If the folder vanishes or is damaged, the old model stays.
"""

import asyncio
import logging
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dragoman.bundle import MANIFEST, locate
from dragoman.languages import primary
from dragoman.translation.ctranslate2 import export_of
from dragoman.translation.translator import Translator

REFRESH_SECONDS = 1.0  # between two checks for new bundles
SAMPLES = {"zh": "好久不见", "en": "Long time no see."}  # translated by each new bundle, for /health and the page
Translate = Callable[[Any, list[str]], Sequence[Any]]  # options, texts -> one result per text
Waiting = tuple[str, asyncio.Future[Any]]  # a text and its result
log = logging.getLogger(__name__)


class Model:
    """The translator of one folder; `history` has an entry for each step loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.history = folder, dict[int | None, dict[str, Any]]()
        self._tried: list[int] | None = None  # times at which the bundle and its export were written
        self._load()

    def refresh(self) -> None:
        """Load the bundle if it has changed; if that fails, the old one stays in use."""
        try:
            self._load()
        except Exception as error:  # a damaged folder must not stop the server
            self.status["error"] = f"{error}. The model loaded before stays in use"
            log.warning("warning: %s", self.status["error"])

    def _load(self) -> None:
        folder = locate(self.folder)
        manifests = folder / MANIFEST, export_of(folder) / MANIFEST
        # Not by Path.exists(), which raises an error for a cache folder that may not be read.
        versions = [path.stat().st_mtime_ns for path in manifests if os.path.exists(path)]
        if versions == self._tried:
            return
        self._tried = versions
        translator = Translator.load(self.folder)
        bundle, scores = translator.bundle, translator.bundle.meta.get("validation") or {}
        entry = {"name": bundle.meta.get("name") or self.folder.name, "engine": translator.engine}
        entry |= {"directions": list(map(str, bundle.directions))}
        entry |= {key: scores[key] for key in ("step", "bleu", "chrf") if key in scores}
        if sample := SAMPLES.get(primary(bundle.src)):
            (result,) = translator.translate([sample], direction=str(bundle.directions[0]))
            entry |= {"source": sample, "translation": result.text}
        self.history[scores.get("step")] = entry
        self.translator = translator  # the next batch uses it
        self.status = entry | {"history": list(self.history.values())}  # for /health


def watch(models: Sequence[Model]) -> None:
    """Load new bundles while the program runs."""
    while True:
        time.sleep(REFRESH_SECONDS)
        for model in models:
            model.refresh()


class Batches:
    """Queues of texts in front of `translate`, which runs in a thread.

    Texts that arrive during the translation of a batch are translated together. Each combination of options (direction,
    number of alternatives) has its own queue.
    """

    def __init__(self, translate: Translate, *, max_chars: int = 4096) -> None:
        self._translate, self._max_chars = translate, max_chars  # of a batch; the engine has its own budget of tokens
        self._queues: defaultdict[Hashable, deque[deque[Waiting]]] = defaultdict(deque)  # one deque for each request
        self._workers: dict[Hashable, asyncio.Task[None]] = {}
        self._thread, self._turn = ThreadPoolExecutor(1, "engine"), asyncio.Lock()

    async def translate(self, options: Hashable, texts: Sequence[str]) -> list[Any]:
        """Return one result per text. Raises the first error of these texts."""
        loop, queue = asyncio.get_running_loop(), self._queues[options]
        waiting: deque[Waiting] = deque((text, loop.create_future()) for text in texts)
        futures = [future for _, future in waiting]
        if waiting:
            if not queue:  # else its worker will take these, too
                self._workers[options] = loop.create_task(self._work(options))
            queue.append(waiting)
        return await asyncio.gather(*futures)

    async def alone(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the engine's thread, between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _work(self, options: Hashable) -> None:
        """Translate one queue, a text of each request in turn; the queues take turns between batches."""
        queue = self._queues[options]
        while queue:
            async with self._turn:
                batch, n_chars = list[Waiting](), 0
                while queue and (not batch or n_chars + len(queue[0][0][0]) <= self._max_chars):
                    request = queue.popleft()
                    text, future = request.popleft()
                    if request:
                        queue.append(request)
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

"""Shared batches: the requests of a batch, and the effect of a failure."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from dragoman.serve.models import Batches


class Engine:
    """Stub that returns each text with its options; `calls` are the batches."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def __call__(self, options: str, texts: list[str]) -> list[str]:
        self.calls.append((options, texts))
        if "poison" in texts:
            raise ValueError("poison")
        return [f"{options}:{text}" for text in texts]


def run(engine: Engine, work: Callable[[Batches], Coroutine[Any, Any, Any]], **limits: Any) -> Any:
    async def main() -> Any:
        return await asyncio.wait_for(work(Batches(engine, **limits)), 5)

    return asyncio.run(main())


def test_concurrent_requests_share_a_batch_and_get_their_own() -> None:
    engine = Engine()
    requests = [[f"{client}", f"{client}'"] for client in range(64)]
    results = run(engine, lambda b: asyncio.gather(*(b.translate("a", texts) for texts in requests)))
    assert results == [[f"a:{text}" for text in texts] for texts in requests]
    assert len(engine.calls) == 1


def test_other_options_have_a_batch_of_their_own() -> None:
    engine = Engine()
    results = run(engine, lambda b: asyncio.gather(b.translate("a", ["x"]), b.translate("b", ["y"])))
    assert results == [["a:x"], ["b:y"]]
    assert sorted(engine.calls) == [("a", ["x"]), ("b", ["y"])]


def test_a_failing_request_fails_alone() -> None:
    async def work(batches: Batches) -> list[Any]:
        requests = (batches.translate("a", texts) for texts in (["x"], ["y", "poison"], ["z"]))
        return [*await asyncio.gather(*requests, return_exceptions=True), await batches.translate("a", ["later"])]

    first, failed, last, later = run(Engine(), work)
    assert (first, last, later) == (["a:x"], ["a:z"], ["a:later"])
    assert isinstance(failed, ValueError)


def test_a_batch_has_a_budget_but_takes_any_single_text() -> None:
    engine = Engine()
    run(engine, lambda b: b.translate("a", ["12345", "67", "8" * 20]), max_chars=8)
    assert [texts for _, texts in engine.calls] == [["12345", "67"], ["8" * 20]]


def test_a_long_request_does_not_delay_a_short_one() -> None:
    engine = Engine()
    requests = (["1" * 9] * 3, ["x"])
    run(engine, lambda b: asyncio.gather(*(b.translate("a", texts) for texts in requests)), max_chars=10)
    assert [texts for _, texts in engine.calls] == [["1" * 9, "x"], ["1" * 9], ["1" * 9]]


def test_texts_of_a_cancelled_request_are_dropped() -> None:
    engine = Engine()

    async def work(batches: Batches) -> list[str]:
        task = asyncio.create_task(batches.translate("a", ["x", "y"]))
        await asyncio.sleep(0)
        task.cancel()
        return await batches.translate("a", ["z"])

    assert run(engine, work) == ["a:z"]
    assert [text for _, texts in engine.calls for text in texts] == ["z"]

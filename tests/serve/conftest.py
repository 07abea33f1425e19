"""The golden model behind a test client."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dragoman.serve.app import create_app
from dragoman.serve.models import Model

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle"


@pytest.fixture(scope="session")
def golden_models() -> list[Model]:
    return [Model(GOLDEN)]


@pytest.fixture
def serve(golden_models: list[Model], tmp_path: Path) -> Iterator[Callable[..., TestClient]]:
    """Client of a new server: serve(**options). Suggestions go to tmp_path."""
    clients: list[TestClient] = []

    def serve(**options: Any) -> TestClient:
        app = create_app(golden_models, tmp_path / "suggestions.jsonl", **options)
        clients.append(TestClient(app, raise_server_exceptions=False).__enter__())
        return clients[-1]

    yield serve
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def client(serve: Callable[..., TestClient]) -> TestClient:
    return serve()

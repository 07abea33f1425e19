"""What several tests share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dragoman import bundle as bundles
from dragoman.bundle import Bundle
from tiny import make_bundle

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """torch.set_num_threads, for this test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Shared by all tests of a session: look, do not touch."""
    return make_bundle(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tiny_bundle_folder(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_bundle` on disk, as a training run would leave it: .../runs/tiny/bundle."""
    folder = tmp_path_factory.mktemp("home") / "runs" / "tiny" / "bundle"
    bundles.save(tiny_bundle, folder)
    return folder

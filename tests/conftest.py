"""What several tests share."""

import os
from pathlib import Path

import pytest

from dragoman import bundle as bundles
from dragoman.bundle import Bundle
from tiny import make_bundle

os.environ.setdefault("OMP_NUM_THREADS", "1")


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

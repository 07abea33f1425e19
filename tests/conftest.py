"""What all tests share."""

import logging
import os
from collections.abc import Iterator

import hypothesis
import pytest

hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")
for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):  # rich would write colours
    os.environ.pop(name, None)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are tiny: more threads only wait for each other


@pytest.fixture(autouse=True)
def package_log() -> Iterator[None]:
    """Restore the package's logger, which a training run redirects to its train.log."""
    yield
    package = logging.getLogger("dragoman")
    package.propagate = True
    package.handlers.clear()

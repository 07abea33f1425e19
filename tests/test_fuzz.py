"""Damaged files of every kind: read, or refused in one line.

FUZZ_MINUTES=10 goes on that long, from another beginning each time (FUZZ_SEED names one). What crashed a reader lies
in tests/crashes, and is fed to it again by every run of the tests.
"""

import hashlib
import os
import random
from pathlib import Path

import pytest

from dragoman.bundle import Bundle
from fuzz import Target, every_target, feed, fuzz, kept

CRASHES = Path(__file__).parent / "crashes"
MINUTES = float(os.environ.get("FUZZ_MINUTES", "0"))
SEED = int(os.environ.get("FUZZ_SEED", "1" if not MINUTES else str(random.randrange(10**9))))


@pytest.fixture(scope="module")
def targets(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> list[Target]:
    return every_target(tiny_bundle, tmp_path_factory.mktemp("bundles"))


def test_undamaged_files_are_read(targets: list[Target], tmp_path: Path) -> None:
    assert {t.name: feed(t, t.pack(t.good), tmp_path) for t in targets} == {t.name: "read" for t in targets}


def test_a_damaged_file_is_read_or_refused_in_one_line(targets: list[Target], tmp_path: Path) -> None:
    found = fuzz(targets, tmp_path, seed=SEED, rounds=30, minutes=MINUTES)
    n, refused = found.executions.total(), found.refused.total()
    print(f"\nseed {SEED}, {len(targets)} kinds of file: {n:,} executions, {refused:,} refused, ", end="")
    print(f"{len(found.crashes)} crashes")
    for name, content, _ in found.crashes:
        place = CRASHES / name / hashlib.sha256(content).hexdigest()[:12]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    assert not found.crashes, "\n".join(sorted({f"{name}: {told}" for name, _, told in found.crashes}))
    assert 0 < refused < n  # neither all nor none: the damage reaches what it is meant for


def test_what_once_crashed_a_reader_is_taken_or_refused(targets: list[Target], tmp_path: Path) -> None:
    told = {str(path): feed(target, path.read_bytes(), tmp_path) for target, path in kept(CRASHES, targets)}
    assert {path: what for path, what in told.items() if what not in ("read", "refused")} == {}

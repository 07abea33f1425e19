"""A disk that fills up, or goes away, while a run writes to it: one line, nothing spoilt, and on it goes afterwards."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dragoman.config import Config
from dragoman.errors import UserError
from dragoman.training.checkpoint import newest
from dragoman.training.fit import fit
from runs import assert_same_state
from test_signals import at_step


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting takes root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def leave(disk: Path, n_bytes: int) -> None:
    """Fill the disk but for that."""
    with suppress(OSError), open(disk / "filler", "wb") as file:
        file.write(b"x" * (shutil.disk_usage(disk).free - n_bytes))


@pytest.mark.parametrize(
    ("room_left", "often", "what"),
    [(200_000, {"save_minutes": 0.0}, r"last\.ckpt"), (0, {"log_every": 1}, "disk.run")],
    ids=["the checkpoint", "the curves"],
)
def test_a_disk_that_fills_up_ends_the_run_in_one_line_and_with_more_room_it_goes_on(
    config: Callable[..., Config],
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    room_left: int,
    often: dict,
    what: str,
) -> None:
    straight, squeezed = config("straight"), config("disk/run", trainer=often)
    fit(straight)
    at_step(7, monkeypatch, lambda: leave(small_disk, room_left))
    with pytest.raises(UserError) as refused:
        fit(squeezed)
    message = str(refused.value)
    assert re.search(
        rf"cannot write .*{what}.*: No space left on device \(.*[\d,]+ bytes are free there\)", message
    )
    found = newest(Path(squeezed.run_dir), None)
    assert found is not None
    assert found.step in (5, 6)
    (small_disk / "filler").unlink()
    monkeypatch.undo()
    fit(squeezed)
    assert_same_state(straight, squeezed)


def test_a_full_data_cache_is_told_with_its_place_and_with_more_room_it_is_filled(
    config: Callable[..., Config], small_disk: Path
) -> None:
    leave(small_disk, 20_000)
    with pytest.raises(
        UserError, match=r"cannot write .*disk.cache.*No space left.*data\.cache can name another place"
    ):
        fit(config(cache=str(small_disk / "cache")))
    (small_disk / "filler").unlink()
    fit(config(cache=str(small_disk / "cache"), trainer={"max_steps": 1}))


@pytest.mark.parametrize(
    "often", [{"save_minutes": 0.0}, {"log_every": 1}], ids=["the checkpoint", "the curves"]
)
def test_a_run_whose_folder_goes_away_stops_and_does_not_make_another(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, often: dict
) -> None:
    run = Path(config().run_dir)
    at_step(7, monkeypatch, lambda: shutil.rmtree(run))
    with pytest.raises(UserError, match=r"cannot write .*run.*No such file or directory"):
        fit(config(trainer=often))
    assert not (run / "last.ckpt").exists()


def test_a_corpus_that_goes_away_while_a_run_trains_is_not_missed(
    config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"max_steps": 4, "validate_every": 100}
    straight = config("straight", trainer=short)
    bereft = config("bereft", trainer=short, cache=str(tmp_path / "own"))
    fit(straight)
    at_step(2, monkeypatch, (tmp_path / "phrases.tsv").unlink)
    fit(bereft)
    assert not (tmp_path / "phrases.tsv").exists()
    assert_same_state(straight, bereft)

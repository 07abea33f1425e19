"""A broken checkpoint is named and not used, and the run that goes on from the one before arrives all the same."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dragoman import durable
from dragoman.config import Config
from dragoman.errors import UserError
from dragoman.training.checkpoint import LAST, SealedCheckpointIO, newest
from dragoman.training.fit import fit
from runs import assert_same_state, losses

HARM = {
    "empty": (lambda whole: b"", "is empty"),
    "cut short": (lambda whole: whole[: len(whole) // 2], "truncated"),
    "a byte short": (lambda whole: whole[:-1], "truncated"),
    "one bit flipped": (lambda whole: whole[:9000] + bytes([whole[9000] ^ 4]) + whole[9001:], "is damaged"),
    "foreign": (lambda whole: b"PK" * 5000, "foreign"),
}


def saved(folder: Path, step: int, run: str = "ours") -> Path:
    content = {"state_dict": {"w": torch.full((5000,), float(step))}, "global_step": step, "run": run}
    SealedCheckpointIO().save_checkpoint(content, folder / LAST)
    return folder / LAST


@pytest.mark.parametrize("harm", HARM)
def test_a_broken_checkpoint_is_named_put_aside_and_the_one_before_it_used(
    tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, told = HARM[harm]
    saved(tmp_path, 1)
    path = saved(tmp_path, 2)
    broken = damage(path.read_bytes())
    path.write_bytes(broken)
    found = newest(tmp_path, "ours")
    assert found == (durable.previous_of(path), "ours", 1)
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert str(path) in said
    assert told in said
    assert (tmp_path / "last.ckpt.broken").read_bytes() == broken
    saved(tmp_path, 3)  # and now there are two again
    assert newest(tmp_path, "ours") == (path, "ours", 3)
    path.unlink()
    assert newest(tmp_path, "ours") == (durable.previous_of(path), "ours", 1)


def test_without_any_whole_checkpoint_nothing_is_touched_and_each_is_named(tmp_path: Path) -> None:
    assert newest(tmp_path, "ours") is None
    for step in (1, 2):
        path = saved(tmp_path, step)
    for broken in (path, durable.previous_of(path)):
        broken.write_bytes(b"")
    with pytest.raises(
        UserError, match=r"last\.ckpt is empty; .*previous is empty: there is nothing to go on from"
    ):
        newest(tmp_path, "ours")
    assert sorted(p.name for p in tmp_path.iterdir()) == [LAST, "last.ckpt.previous"]


def test_a_checkpoint_of_another_run_is_not_ours(tmp_path: Path) -> None:
    saved(tmp_path, 1, run="theirs")
    with pytest.raises(UserError, match="another run"):
        newest(tmp_path, "ours")


def test_the_last_line_of_a_checkpoint_says_whose_it_is(tmp_path: Path) -> None:
    content = saved(tmp_path, 7).read_bytes()
    assert content.splitlines()[-1].startswith(b"dragoman checkpoint of run ours, step 7: ")


def test_no_bit_of_the_last_line_can_flip_unnoticed(tmp_path: Path) -> None:
    path = saved(tmp_path, 1200)
    whole = path.read_bytes()
    assert newest(tmp_path, None) == (path, "ours", 1200)
    for at in range(whole.rindex(b"\ndragoman") * 8, len(whole) * 8):
        path.write_bytes(whole[: at // 8] + bytes([whole[at // 8] ^ 1 << at % 8]) + whole[at // 8 + 1 :])
        with pytest.raises(UserError, match="nothing to go on from"):
            newest(tmp_path, None)


def test_a_seal_does_not_make_a_hostile_archive_welcome(tmp_path: Path) -> None:
    """Anybody can write the line; what stands before it is looked through all the same."""
    with durable.replacing(tmp_path / LAST) as file:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a/data.pkl", b"\x80\x02}.")
        file.write(packed.getvalue())
        size, sealed = file.size, file.sha256.copy()
        sealed.update(b"run ours, step 1")
        seal = f"\ndragoman checkpoint of run ours, step 1: {size} bytes, sha256 {sealed.hexdigest()}\n"
        file.write(seal.encode())
    assert newest(tmp_path, "ours") is not None
    with pytest.raises(UserError, match="compressed"):
        SealedCheckpointIO().load_checkpoint(tmp_path / LAST)


@pytest.mark.parametrize("harm", ["cut short", "one bit flipped"])
def test_a_run_whose_newest_checkpoint_is_broken_arrives_where_it_would_have(
    config: Callable[..., Config], harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    straight = config("straight")
    fit(straight)
    often = {"save_minutes": 0.0}
    fit(config("broken", trainer={"max_steps": 8, **often}))
    path = Path(straight.run_dir).parent / "broken" / LAST
    path.write_bytes(HARM[harm][0](path.read_bytes()))
    fit(config("broken", trainer=often))
    out = capsys.readouterr().out
    assert f"{path} " in out
    assert "going on from the one before it, of step 7" in out
    assert "at step 7" in out
    assert_same_state(straight, config("broken"))
    assert losses(straight) == [record for record in losses(config("broken")) if record[0] != 8]

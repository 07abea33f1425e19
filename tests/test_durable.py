"""Files and folders are old or new, and whole, whatever happens to the one who writes them."""

import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from dragoman import durable
from dragoman.errors import UserError

OLD, NEW = b"old" * 1000, b"new" * 2000


def killed_at(n: int, work: Callable[[], None]) -> bool:
    """Do the work in another process, killed before the nth line of durable.py; whether it came so far."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        return os.WIFSIGNALED(status)
    lines = 0

    def line(frame, event, arg):  # type: ignore[no-untyped-def]
        nonlocal lines
        lines += event == "line"
        if lines == n:
            os.kill(os.getpid(), signal.SIGKILL)
        return line

    try:
        sys.settrace(lambda frame, event, arg: line if frame.f_code.co_filename == durable.__file__ else None)
        work()
        sys.settrace(None)
    except BaseException:
        os._exit(1)
    os._exit(0)


def test_a_file_whose_writer_is_killed_anywhere_is_old_or_new_and_the_one_before_is_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"

    def work() -> None:
        with durable.replacing(path, keep_previous=True) as file:
            file.write(NEW[:1500])
            file.write(NEW[1500:])

    seen, n = set(), 0
    while True:
        n += 1
        for name in os.listdir(tmp_path):
            os.unlink(tmp_path / name)
        path.write_bytes(OLD)
        survived = not killed_at(n, work)
        found = path if path.exists() else durable.previous_of(path)
        seen.add((content := found.read_bytes()) == NEW)
        assert content in (OLD, NEW)
        work()  # what the killed one left is in nobody's way
        assert sorted(os.listdir(tmp_path)) == ["file", "file.previous"]
        if survived:
            break
    assert n > 30
    assert seen == {True, False}


def test_a_folder_whose_writer_is_killed_anywhere_is_old_or_new(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "folder"

    def work(content: bytes = NEW) -> None:
        durable.replace_folder(
            folder, lambda new: [(new / name).write_bytes(content) for name in "ab"] and None
        )

    n, survived = 0, False
    while not survived:
        n += 1
        shutil.rmtree(folder.parent, ignore_errors=True)
        work(OLD)
        survived = not killed_at(n, work)
        contents = {path.read_bytes() for path in durable.current(folder).iterdir()}
        assert contents in ({OLD}, {NEW})
        work()
        assert os.listdir(folder.parent) == ["folder"]
    assert n > 40


def write_file(place: Path, content: bytes) -> None:
    durable.write(place / "file", content)


def write_folder(place: Path, content: bytes) -> None:
    durable.replace_folder(place / "folder", lambda new: (new / "file").write_bytes(content) and None)


WRITERS = pytest.mark.parametrize(
    ("write", "written"), [(write_file, Path("file")), (write_folder, Path("folder", "file"))]
)


def at_fsync_of_files(do: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of forcing a file to the disk; folders are as ever."""
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda n: (do if stat.S_ISREG(os.fstat(n).st_mode) else fsync)(n))


@WRITERS
def test_what_the_disk_gives_back_is_compared_with_what_was_written(
    write: Callable[[Path, bytes], None], written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, OLD)

    def forget(handle: int) -> None:
        with open(f"/proc/self/fd/{handle}", "r+b") as file:
            file.write(b"X")

    at_fsync_of_files(forget, monkeypatch)
    with pytest.raises(UserError, match="does not give back what was written"):
        write(tmp_path, NEW)
    assert (tmp_path / written).read_bytes() == OLD
    assert os.listdir(tmp_path) == [written.parts[0]]


@WRITERS
def test_a_disk_that_fails_when_it_is_forced_changes_nothing(
    write: Callable[[Path, bytes], None], written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is when many disks tell: a write before it ends in memory."""
    write(tmp_path, OLD)

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    at_fsync_of_files(fail, monkeypatch)
    with pytest.raises(UserError, match="Input/output error"):
        write(tmp_path, NEW)
    assert (tmp_path / written).read_bytes() == OLD
    assert os.listdir(tmp_path) == [written.parts[0]]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What the system is told to force, to rename and to remove, in this order."""
    calls: list[tuple[str, ...]] = []

    def watch(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def watched(*args: int | Path, **kwargs: object) -> object:
            paths = (f"/proc/self/fd/{arg}" if isinstance(arg, int) else arg for arg in args)
            calls.append((name, *(os.path.relpath(os.path.realpath(path), tmp_path) for path in paths)))
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    for owner, name in ((os, "fsync"), (os, "replace"), (os, "rename"), (shutil, "rmtree")):
        watch(owner, name)
    return calls


def test_a_file_is_on_the_disk_before_it_gets_its_name_and_then_the_name_is(
    tmp_path: Path, told: list[tuple[str, ...]]
) -> None:
    """No kill can show this: the system remembers for a killed program what a power cut would take."""
    (tmp_path / "file").write_bytes(OLD)
    with durable.replacing(tmp_path / "file", keep_previous=True) as file:
        file.write(NEW)
    assert told == [
        ("fsync", "file.part"),
        ("replace", "file", "file.previous"),
        ("replace", "file.part", "file"),
        ("fsync", "."),
    ]


def test_all_of_a_folder_is_on_the_disk_before_it_gets_its_name_and_the_old_one_goes_last(
    tmp_path: Path, told: list[tuple[str, ...]]
) -> None:
    def fill(new: Path) -> None:
        (new / "inner").mkdir()
        for name in ("a", "inner/b"):
            (new / name).write_bytes(NEW)

    (tmp_path / "folder").mkdir()
    durable.replace_folder(tmp_path / "folder", fill)
    new = ".folder.new"
    assert set(told[:4]) == {("fsync", path) for path in (new, f"{new}/a", f"{new}/inner", f"{new}/inner/b")}
    assert told[4:] == [
        ("rename", "folder", ".folder.previous"),
        ("rename", new, "folder"),
        ("fsync", "."),
        ("rmtree", ".folder.previous"),
    ]


@contextmanager
def no_file_larger_than(n_bytes: int) -> Iterator[None]:
    """The system itself refuses, as it does when a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_the_system_refuses_is_told_with_path_and_bytes_and_changes_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    with (
        no_file_larger_than(4000),
        pytest.raises(UserError, match=r"file: File too large \(after [\d,]+ bytes; .*free"),
    ):
        durable.write(path, NEW)
    refused = pytest.raises(UserError, match="File too large")  # torch has words of its own
    with no_file_larger_than(4000), refused, durable.replacing(path) as file:
        torch.save({"w": torch.ones(10_000)}, file)
    assert path.read_bytes() == OLD
    with no_file_larger_than(4000), pytest.raises(UserError, match="folder: File too large"):
        durable.replace_folder(tmp_path / "folder", lambda new: (new / "a").write_bytes(NEW) and None)
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_written_into_is_closed_with_its_file(tmp_path: Path) -> None:
    """Otherwise it is flushed once more when it is forgotten, and from Python 3.13 on that failure is told."""
    with durable.replacing(tmp_path / "file") as file:
        file.write(NEW)
    with no_file_larger_than(4000), pytest.raises(UserError), durable.replacing(tmp_path / "file") as refused:
        refused.write(NEW)
    assert file.closed
    assert refused.closed


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting takes root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_and_a_read_only_disk_are_told_and_what_was_there_stays(small_disk: Path) -> None:
    path = small_disk / "file"
    durable.write(path, OLD)
    with pytest.raises(
        UserError, match=r"No space left on device \(after [\d,]+ bytes; 2\d\d,\d\d\d bytes are free"
    ):
        durable.write(path, NEW * 100)
    with pytest.raises(UserError, match="No space left on device"):
        durable.replace_folder(small_disk / "folder", lambda new: (new / "a").write_bytes(NEW * 100) and None)
    assert os.listdir(small_disk) == ["file"]
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(UserError, match="Read-only file system"):
        durable.write(path, NEW)
    assert path.read_bytes() == OLD


def told_without_rights(folder: Path, path: str) -> str:
    """What somebody is told who is not root, and writes to `path` in `folder`."""
    heard, said = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.chdir(folder)
            if not os.geteuid():
                os.setuid(65534)
            durable.write(Path(path), NEW)
        except BaseException as error:
            os.write(said, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(said)
    os.waitpid(child, 0)
    with open(heard) as file:
        return file.read()


def test_a_folder_without_permission_and_one_that_is_gone_are_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for name, mode in {"open": 0o777, "closed": 0o555, "hidden": 0}.items():
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name).chmod(mode)
    try:
        assert told_without_rights(tmp_path, "open/file") == ""
        for path, why in {
            "gone/file": "No such file",
            "closed/file": "Permission denied",
            "hidden/inner/file": "Permission denied",
        }.items():
            told = told_without_rights(tmp_path, path)
            assert told.startswith(f"RefusalError: cannot write {path}: {why}")
    finally:
        (tmp_path / "hidden").chmod(0o755)  # or nobody could tidy up


def test_what_could_not_be_read_for_it_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "cache" / "joint.model"
    with pytest.raises(UserError, match=rf"cannot write .*bundle: No such file or directory: {missing} \("):
        durable.replace_folder(tmp_path / "run" / "bundle", lambda new: new.write_bytes(missing.read_bytes()))
    with pytest.raises(UserError, match=r"No such file or directory \("):
        durable.write(tmp_path / "nowhere" / "a.txt", b"a")

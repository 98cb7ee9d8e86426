"""Locks that only their owner can take."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from joblens.core.lock import describe_holder, note_progress, open_lock, take_lock
from joblens.store import pending, records

UID = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """All users can read it."""
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        yield Path(top)


def lock_as_user(path: Path) -> bool:
    """Whether another user can take a lock."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    command = ["flock", "-n", str(path), "true"]
    return subprocess.run(command, user=UID, cwd="/", capture_output=True, check=False).returncode == 0


def test_one_has_it(folder: Path) -> None:
    first, second = open_lock(folder / "a.lock"), open_lock(folder / "a.lock")
    assert take_lock(first)
    assert not take_lock(second)
    note_progress(first)
    assert describe_holder(second, 60) == ""
    assert f"process {os.getpid()} has had it for " in describe_holder(second, -60)
    os.close(first)
    assert take_lock(second)
    os.close(second)


@pytest.mark.parametrize("before", [None, 0o600, 0o644, 0o666])
def test_no_other_user_can_open_it(folder: Path, before: int | None) -> None:
    """Also if an earlier version has created it for all."""
    path = folder / "a.lock"
    if before is not None:
        path.touch()
        path.chmod(before)
    os.close(open_lock(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not lock_as_user(path)


def test_a_link_is_not_followed(folder: Path) -> None:
    (folder / "a.lock").symlink_to(folder / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        open_lock(folder / "a.lock")
    assert not (folder / "elsewhere").exists()


def test_root_in_the_store_of_a_user(folder: Path) -> None:
    """The user can take it afterwards."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(folder, UID, -1)
    os.close(open_lock(folder / "a.lock"))
    assert lock_as_user(folder / "a.lock")


def test_a_store_that_others_can_read(folder: Path) -> None:
    """They cannot keep its owner from changing a record, or from storing samples."""
    for name in ("records", "waiting"):
        (folder / name).mkdir()
        (folder / name).chmod(0o755)
    holders = [folder / "records", folder / "waiting"]
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    held = [
        subprocess.Popen(
            ["flock", str(it), "sh", "-c", "echo; cat"], user=UID, cwd="/",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for it in holders
    ]  # fmt: skip
    for process in held:
        assert process.stdout
        assert process.stdout.readline() == b"\n"
    with records.alone(folder / "records"), pending.one_at_a_time(folder / "waiting") as is_free:
        assert is_free
        assert not any(lock_as_user(folder / name) for name in ("records.lock", "waiting.lock"))
    for process in held:
        process.communicate()


def test_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records can still be changed, one change at a time: the folder is locked."""
    (folder / "records").mkdir()

    def refuse(path: str) -> int:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(records, "open_lock", refuse)
    with records.alone(folder / "records"):
        fd = os.open(folder / "records", os.O_RDONLY)
        assert not take_lock(fd)
        os.close(fd)

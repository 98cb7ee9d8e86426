"""A disk of 2 MiB, which is soon full, and one with a quota, which is soon reached."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

Disk = Callable[[Path, int], AbstractContextManager[Path]]
SIZE = 2 << 20
_BTRFS = 120 << 20  # the smallest that it makes, most of which is never written


@contextmanager
def mounted(folder: Path, size: int = SIZE) -> Iterator[Path]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def with_quota(folder: Path, size: int = SIZE) -> Iterator[Path]:
    """A part of a Btrfs that has much more room."""
    image = folder.with_suffix(".btrfs")
    with image.open("wb") as file:
        file.truncate(_BTRFS)
    folder.mkdir()
    part = folder / "part"
    try:
        if why := _make_quota(image, folder, part, size):
            pytest.skip(f"no disk with a quota can be made here: {why}")
        yield part
    finally:
        subprocess.run(["umount", "--lazy", folder], capture_output=True, check=False)
        image.unlink()


def _make_quota(image: Path, folder: Path, part: Path, size: int) -> str:
    """Why it could not be made."""
    for words in (
        ("mkfs.btrfs", "-q", image),
        ("mount", "-o", "loop", image, folder),
        ("btrfs", "quota", "enable", folder),
        ("btrfs", "subvolume", "create", part),
        ("btrfs", "qgroup", "limit", str(size), part),
    ):
        try:
            subprocess.run(words, capture_output=True, check=True, text=True)
        except FileNotFoundError:
            return f"there is no {words[0]}"
        except subprocess.CalledProcessError as error:
            return f"{words[0]}: {error.stderr.strip()}"
    return ""


def fill(folder: Path) -> Path:
    """Until nothing more goes in."""
    path = folder / "ballast"
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return path
    raise AssertionError("it does not fill")

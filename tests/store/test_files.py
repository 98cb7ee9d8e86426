from __future__ import annotations

import os
from pathlib import Path

import pytest

from joblens.core.files import now_at, publish_once, unfinished_name, write_whole


def test_whole_or_not_there(tmp_path: Path) -> None:
    """A file that cannot be written leaves nothing behind."""
    write_whole(str(tmp_path / "a"), b"1")
    with pytest.raises(OSError, match="nowhere"):
        write_whole(str(tmp_path / "nowhere" / "a"), b"1")
    (tmp_path / "b").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(str(tmp_path / "b"), b"1")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_one_of_several_gets_the_name(tmp_path: Path) -> None:
    """What is there already is not replaced, and the loser's work is cleared away."""
    path = str(tmp_path / "a")
    for number in range(3):
        mine = unfinished_name(path)
        Path(mine).write_text(str(number))
        assert publish_once(mine, path) == (number == 0)
    assert (tmp_path / "a").read_text() == "0"
    assert os.listdir(tmp_path) == ["a"]


def test_clock_of_the_file_system(tmp_path: Path) -> None:
    """Ages of files are measured by the clock that stamped them, and asking leaves nothing behind."""
    before = now_at(str(tmp_path))
    (tmp_path / "a").write_text("")
    assert before <= (tmp_path / "a").stat().st_mtime <= now_at(str(tmp_path))
    assert os.listdir(tmp_path) == ["a"]

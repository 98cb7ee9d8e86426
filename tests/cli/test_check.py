"""`joblens check`: each part works on this machine, or it says what to do."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from joblens.capture import library
from joblens.cli import main
from joblens.collectors.ends.source import KernelEnds
from joblens.core.errors import PrivilegeError
from joblens.core.host import Host


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_machine_on_which_all_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run is captured, staged and submitted; nothing of that is left in the store."""
    assert library.find_library() or library.build_library() == ""
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "store"))
    assert main(["check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    results = {it["what"]: it["right"] for it in found["findings"]}
    assert found["right"] is True
    assert {name: results[name] for name in ("store", "library", "run", "staging")} == dict.fromkeys(
        ("store", "library", "run", "staging"), True
    )
    assert results["permissions"] is (True if can_report_ends() else None)
    assert list((tmp_path / "store" / "incoming").iterdir()) == []


def can_report_ends() -> bool:
    try:
        KernelEnds(Host()).close()
    except (OSError, PrivilegeError):
        return False
    return os.geteuid() == 0


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with what to do, and a failed check is exit code 1."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "file" / "store"))
    monkeypatch.setattr(library, "LIBRARY", str(tmp_path / "none.so"))
    assert main(["check"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("✗ store          cannot create the store")
    assert "→ set JOBLENS_HOME to a folder that you can write to\n? library        the library is m" in shown
    assert "→ install a C compiler, then reinstall joblens\n" in shown
    assert "\n? run            needs the library\n" in shown
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["check"]) == 1
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 50
    assert "? run            needs the library" in narrow


def test_a_store_for_everybody_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Command lines and file names in it are for its owner."""
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path))
    monkeypatch.setattr(library, "LIBRARY", str(tmp_path / "none.so"))
    tmp_path.chmod(0o755)
    assert main(["check"]) == 1
    shown = "".join(capsys.readouterr().out.split())  # the path may be wrapped
    assert f"{tmp_path}isaccessibletoallusers(mode755)" in shown

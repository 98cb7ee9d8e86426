"""Commands of a scheduler: what they write, and an end to them whatever they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from joblens.core.errors import OutsideError
from joblens.core.procfs import find_stat
from joblens.schedulers.command import run_command
from waiting import wait_for


def shell(code: str, timeout: float = 60.0, most: int = 1 << 20) -> str:
    return run_command(["/bin/sh", "-c", code], {"MORE": "m"}, timeout, most)


def test_answer() -> None:
    """The output is returned; stderr of a success is ignored; invalid UTF-8 is replaced."""
    assert shell("echo $MORE; echo x >&2") == "m\n"
    assert shell("printf 'a\\377b'") == "a�b"
    assert shell("cat") == ""  # stdin is empty
    assert shell('echo "$#"; set -- \'$(id)\'; echo "$1"') == "0\n$(id)\n"


def test_failing() -> None:
    with pytest.raises(OutsideError, match=r"/bin/sh failed \(3\): why"):
        shell("echo; echo why >&2; exit 3")
    with pytest.raises(OutsideError, match="no error message"):
        shell("kill -9 $$")


def test_missing(tmp_path: Path) -> None:
    for command in (str(tmp_path / "none"), str(tmp_path)):
        with pytest.raises(OutsideError, match="cannot be run"):
            run_command([command])


@pytest.mark.parametrize(
    "code", ["sleep 1000 & echo $! > P; wait", "exec >&- 2>&-; echo $$ > P; exec sleep 1000"]
)
def test_timeout(tmp_path: Path, code: str) -> None:
    """The command is killed together with its children."""
    file = tmp_path / "pid"
    for seconds in (0.5, 5, 50):  # on a busy machine it may not even have begun
        with pytest.raises(OutsideError, match="timed out after"):
            shell(code.replace("P", str(file), 1), timeout=seconds)
        if file.exists() and file.read_text().endswith("\n"):
            break
    pid = int(file.read_text())
    wait_for("the end of the command", lambda: is_dead(pid))


def is_dead(pid: int) -> bool:
    stat = find_stat(pid)
    return stat is None or stat.has_ended


def test_too_much() -> None:
    """An answer without an end does not fill the memory; nor do complaints."""
    with pytest.raises(OutsideError, match="more than 1 MiB"):
        shell("yes")
    assert shell("yes >&2 & sleep 1; kill $!; echo done") == "done\n"

"""Marks and figures of merit from inside of `joblens run`, and reports of a part of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.run.clock import Clock
from joblens.run.mark_file import JobMarks, write_mark
from joblens.wire.marks import LONGEST_TEXT, Mark, Message
from run.running import JOBLENS, Stand

J = " ".join(JOBLENS)
BURN = "import time\nwhile time.process_time() < 1.5: pass"


@pytest.fixture(autouse=True)
def no_agent(stand: Stand) -> None:
    """Whatever runs on this machine is not asked."""
    stand.environment["JOBLENS_AGENT"] = f"joblens-test-{os.urandom(6).hex()}"


def shell(stand: Stand, script: str, *options: str) -> dict[str, Any]:
    ended = stand.run(["sh", "-c", script], "--quiet", "--interval", "0.1", *options)
    assert (ended.returncode, ended.stderr) == (0, "")
    return report(stand, "last")


def report(stand: Stand, *words: str) -> dict[str, Any]:
    """`joblens mark` is one of the job's processes, and shown as such."""
    found: dict[str, Any] = json.loads(stand.joblens("job", *words, "--json").stdout)
    return found


def test_marks_and_a_part(stand: Stand) -> None:
    """What was told is in the record; the report of a part tells of what was used in it."""
    burn = f"{sys.executable} -c '{BURN}'"
    record = shell(
        stand,
        f"{J} mark start idle; sleep 0.6; {J} mark stop idle; {J} mark start busy; {burn}; "
        f"{J} fom --strict speed=1.5GF/s loss=-0.25; {J} mark stop busy; {J} mark start open",
    )
    idle, busy, last = record["marks"]
    assert [mark["text"] for mark in record["marks"]] == ["idle", "busy", "open"]
    assert record["job"]["start"] < idle["start"] < idle["end"] < busy["start"] < busy["end"]
    assert last["end"] is None
    assert [(fom["name"], fom["unit"], fom["last"]) for fom in record["foms"]] == [
        ("loss", "", -0.25), ("speed", "GF/s", 1.5)
    ]  # fmt: skip
    part = report(stand, "last", "--between", "busy")
    assert part["cut"] == {"from": busy["start"], "to": busy["end"], "what": "mark 'busy'"}
    assert part["used"]["duration_seconds"] == pytest.approx(busy["end"] - busy["start"])
    assert part["used"]["cpu_seconds"] > 1.2
    other = report(stand, "last", "--between", "idle")
    assert other["used"]["cpu_seconds"] < 1.0
    assert [mark["text"] for mark in other["marks"]] == ["idle"]
    shown = stand.joblens("job", "last", "--between", "busy").stdout
    assert "only " in shown.splitlines()[3]
    assert "speed GF/s" in shown


def test_parts_that_are_not_there(stand: Stand) -> None:
    shell(stand, f"{J} mark here")
    for words, why in (
        (("--between", "x"), "no mark 'x'; it has here"),
        (("--between", "here#2"), "no mark 'here#2'"),
        (("--between", "here"), "nothing of the job"),
        (("--step", "0"), "no step '0'"),
        (("--from", "+9d"), "nothing of the job"),
        (("--from", "x"), "is not a time"),
        (("--from", "+1", "--step", "0"), "one of"),
    ):
        ended = stand.joblens("job", "last", *words)
        assert ended.returncode in (1, 2)
        assert why in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_without_samples(stand: Stand) -> None:
    shell(stand, "sleep 0.3")
    for file in stand.home.glob("waiting/*/*"):
        file.unlink()
    ended = stand.joblens("job", "last", "--from", "+0")
    assert ended.returncode == 1
    assert "no samples of job" in ended.stderr


def test_a_run_that_is_not_ours(stand: Stand) -> None:
    """The variable comes along where it is not meant; then it does not count, and nothing is harmed."""
    folder = stand.folder / "other"
    folder.mkdir()
    facts = {"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "supervisor": [1, 0]}
    facts["pid_namespace"] = os.readlink("/proc/self/ns/pid")
    (folder / "job.json").write_text(json.dumps(facts))
    for value in (str(folder), "/nowhere", "relative", ""):
        ended = stand.joblens("mark", "x", env={**stand.environment, "JOBLENS_RUN": value})
        assert ended.returncode == 0
        assert ended.stderr.startswith("joblens mark: not stored: no joblens agent is running on this node")
    assert [file.name for file in folder.iterdir()] == ["job.json"]


def test_from_orphans_and_from_a_run_in_a_run(stand: Stand) -> None:
    """Who is left by its parent is still the job's; a run in a run has its own marks."""
    orphan = f"({J} mark --strict orphan; touch done) &"
    inner = f"{J} run --quiet --name inner -- {J} mark --strict in"
    wait = "while [ ! -e done ]; do sleep 0.05; done"
    shell(stand, f"({orphan}); {wait}; {inner}; {J} mark --strict out", "--name", "outer")
    listed = json.loads(stand.joblens("jobs", "--json").stdout)
    found = {job["name"]: report(stand, job["id"])["marks"] for job in listed}
    assert [mark["text"] for mark in found["outer"]] == ["orphan", "out"]
    assert [mark["text"] for mark in found["inner"]] == ["in"]


def test_hostile_words(stand: Stand) -> None:
    """They come as bytes that are no text, in many lines, and long."""
    script = f"{J} mark --strict \"$(printf 'a\\nb\\033[2J\\377')\"; {J} mark --strict $(seq 4000)"
    first, second = shell(stand, script)["marks"]
    assert first["text"] == "a b?[2J?"
    assert len(second["text"]) == LONGEST_TEXT


# The file itself

CLOCK = Clock(10**18, 0)


def marks_of(folder: Path) -> JobMarks:
    return JobMarks(str(folder), ("c", "r1", "n"), CLOCK)


def test_times_are_not_believed(tmp_path: Path) -> None:
    """Before the last look, or in the future: then it was at the last look, or is now."""
    reader = marks_of(tmp_path)
    reader.read()
    write_mark(str(tmp_path), Message([Mark("moment", "now")]))
    lines = [{"path": "/mark", "boot_ns": boot, "body": {"text": str(boot)}} for boot in (-(10**30), 10**30)]
    with (tmp_path / "marks").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    low = reader._last_ns
    found = reader.read()
    assert len(found) == 3
    assert all(low <= sample.time_ns <= reader._last_ns for sample in found)
    assert reader.problems() == []


def test_half_a_line_is_waited_for(tmp_path: Path) -> None:
    reader, file = marks_of(tmp_path), tmp_path / "marks"
    line = json.dumps({"path": "/mark", "boot_ns": 1, "body": {"text": "x"}})
    file.write_text(line[:20])
    assert reader.read() == []
    with file.open("a") as more:
        more.write(line[20:] + "\n")
    assert len(reader.read()) == 1
    with file.open("a") as more:
        more.write("y" * 30_000)
    assert reader.read() == []
    assert reader.problems() == ["1 marks could not be read"]


@given(st.lists(st.binary() | st.sampled_from([b"\n", b'{"path": "/mark", "boot_ns": 1, "body": {}}'])))
def test_any_file(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("any")
    reader = marks_of(folder)
    for part in parts:
        with (folder / "marks").open("ab") as file:
            file.write(part)
        assert reader.read() == []


def test_no_file_of_another_kind(tmp_path: Path) -> None:
    """A link that leads elsewhere, or a pipe that would be waited for, is not written to."""
    (tmp_path / "target").write_text("")
    (tmp_path / "marks").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        write_mark(str(tmp_path), Message([Mark("moment", "x")]))
    (tmp_path / "marks").unlink()
    os.mkfifo(tmp_path / "marks")
    with pytest.raises(OSError, match="No such device"):
        write_mark(str(tmp_path), Message([Mark("moment", "x")]))
    assert (tmp_path / "target").read_text() == ""

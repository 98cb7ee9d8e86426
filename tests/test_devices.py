"""Whose is a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.sampler import Sampler
from joblens.attribution.devices import JOB_GPU, Given, JobName, parse_devices, share_gpus
from joblens.collectors.gpu_reading import GPU, GPU_PROCESS, Device, Reading, Use
from joblens.config import Settings
from joblens.host import Host
from joblens.model import ABSENT, Rows
from kernel import make_machine

GIB = 1 << 30
ALICE: JobName = ("c", "42", "node1")
BOB: JobName = ("c", "43", "node1")
DEVICES = "sys/fs/cgroup/devices"
MOUNT = b"cgroup /sys/fs/cgroup/devices cgroup rw,devices 0 0\n"


def gpus(*busy: int) -> Rows:
    """Cards 0, 1, … of 40 GiB that are busy so many percent, and draw 100 W each."""
    known = {"memory_used_bytes": GIB, "memory_total_bytes": 40 * GIB, "power_watts": 100_000_000}
    values = [
        {**known, "busy_ratio": part * 100}.get(column.name, ABSENT)
        for part in busy
        for column in GPU.columns
    ]
    keys = tuple(
        (f"GPU-{n}", str(n), f"0000:0{n}:00.0", f"195:{n}", "nvidia", "A100", "") for n in range(len(busy))
    )
    return Rows(GPU, keys, values)


def uses(*found: tuple[str, int, int, int]) -> Rows:
    """GPU, pid, memory, percent busy."""
    values = [number for _, _, memory, part in found for number in (memory, part * 100, ABSENT)]
    return Rows(GPU_PROCESS, tuple((gpu, pid) for gpu, pid, _, _ in found), values)


def nobody(pid: int) -> None:
    """Of no pid is the job known."""


def told(rows: Rows) -> dict[tuple[Any, Any], dict[str, Any]]:
    """By job and index, what is known, and how."""
    names = [column.name for column in JOB_GPU.columns]
    return {
        (key[1], key[4]): {
            "given": key[6],
            **{name: value for name, value in zip(names, rows.row(number)) if value != ABSENT},
        }
        for number, key in enumerate(rows.keys)
    }


def test_a_job_that_uses_one_of_four() -> None:
    """The three that it was given and does not use are told with no process on them."""
    given = {ALICE: Given(frozenset(("0", "1", "2", "3")), "file")}
    found = told(share_gpus(gpus(90, 0, 0, 0), uses(("GPU-0", 7, 5 * GIB, 88)), {7: ALICE}.get, given))
    assert [key[1] for key in found] == ["0", "1", "2", "3"]
    assert [it["processes"] for it in found.values()] == [1, 0, 0, 0]
    assert [it["busy_ratio"] for it in found.values()] == [9000, 0, 0, 0]
    assert [it["memory_used_bytes"] for it in found.values()] == [5 * GIB, GIB, GIB, GIB]
    assert {it["given"] for it in found.values()} == {"file"}


def test_two_jobs_on_one_card() -> None:
    """Each has what its own processes have; power is nobody's, as nobody knows."""
    use = uses(("GPU-0", 7, 5 * GIB, 60), ("GPU-0", 8, 2 * GIB, 20), ("GPU-0", 9, GIB, 10))
    found = told(share_gpus(gpus(90), use, {7: ALICE, 8: BOB, 9: BOB}.get, {}))
    assert found["42", "0"] == {
        "given": "process", "processes": 1, "busy_ratio": 6000, "memory_used_bytes": 5 * GIB,
        "memory_total_bytes": 40 * GIB,
    }  # fmt: skip
    assert (found["43", "0"]["busy_ratio"], found["43", "0"]["memory_used_bytes"]) == (3000, 3 * GIB)
    assert "busy_seconds" not in found["42", "0"]


def test_somebody_on_a_card_that_was_given_to_another() -> None:
    """Both are told, each with how it is known."""
    found = told(
        share_gpus(
            gpus(90), uses(("GPU-0", 8, GIB, 90)), {8: BOB}.get, {ALICE: Given(frozenset(("GPU-0",)), "file")}
        )
    )
    assert (found["42", "0"]["given"], found["42", "0"]["processes"]) == ("file", 0)
    assert found["42", "0"]["busy_ratio"] == 0
    assert (found["43", "0"]["given"], found["43", "0"]["busy_ratio"]) == ("process", 9000)


def test_nobody() -> None:
    """A card on which only processes of no job run is no job's."""
    assert share_gpus(gpus(90, 0), uses(("GPU-0", 8, GIB, 90)), nobody, {}).keys == ()


@pytest.mark.parametrize("name", ["GPU-1", "1", "0000:01:00.0", "195:1"])
def test_every_way_to_name_a_card(name: str) -> None:
    found = share_gpus(gpus(1, 2), uses(), nobody, {ALICE: Given(frozenset((name,)), "file")})
    assert [key[3] for key in found.keys] == ["GPU-1"]


def test_device_lists() -> None:
    """What can be read and written; a group that may open everything says nothing."""
    some = b"c 1:3 rwm\nc 195:0 rw\nc 195:1 r\nb 8:0 rwm\nc 195:255 rwm\n"
    assert parse_devices(some) == frozenset(("1:3", "195:0", "195:255"))
    assert parse_devices(b"a *:* rwm\n") is None
    assert parse_devices(b"") == frozenset()


@given(st.binary(max_size=200))
def test_any_device_list(data: bytes) -> None:
    found = parse_devices(data)
    assert found is None or all(isinstance(name, str) for name in found)


class Card:
    """Two cards of which the process 4000 of the small machine's job 42 uses one."""

    def open(self, host: Host) -> Any:
        def device(number: int) -> Device:
            values = {"up": 1, "busy_ratio": 5000, "memory_used_bytes": GIB}
            return Device(f"GPU-{number}", str(number), "", f"195:{number}", "nvidia", "A100", "", values)

        return lambda: Reading([device(0), device(1)], [Use("GPU-0", 4000, {"memory_bytes": GIB})])


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["joblens.collectors.gpus"], "_VENDORS", (("nvidia", Card().open),))


@pytest.mark.usefixtures("cards")
def test_by_cgroup(tmp_path: Path) -> None:
    """The devices of the job's group say which cards it was given; its process says which it uses."""
    mounts = (Path(make_machine(tmp_path)) / "proc/self/mounts").read_bytes()
    changes: dict[str, bytes | None] = {
        "proc/self/mounts": mounts + MOUNT,
        f"{DEVICES}/slurm/uid_1000/job_42/devices.list": b"c 195:0 rwm\nc 195:1 rwm\n",
    }
    sampler = Sampler(Host(make_machine(tmp_path, changes)), Settings(), print)
    found = {sample.rows.schema.set: sample.rows for sample in sampler.sample(0)}
    jobs = told(found["job_gpu"])
    assert {key: (it["given"], it["processes"]) for key, it in jobs.items()} == {
        ("42", "0"): ("cgroup", 1),
        ("42", "1"): ("cgroup", 0),
    }
    assert found["gpu_process"].keys == (("node1", "42", "0", "node1", "GPU-0", 4000),)


@pytest.mark.usefixtures("cards")
def test_by_job_file(tmp_path: Path) -> None:
    """A file gives card 1 to a job that has no process at all: it is told, until the file is gone."""
    sampler = Sampler(Host(make_machine(tmp_path)), Settings(), print)
    folder = Path(sampler.host.root) / "run/joblens/jobs"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "77.json"
    file.write_text(json.dumps({"id": "77", "uid": 1001, "gpus": [1]}))
    for path in (file, folder, folder.parent):
        path.chmod(0o644 if path.is_file() else 0o755)
    shown = []
    for tick in range(2):
        sampler.sample(tick)
        (rows,) = [rows for rows in sampler.known() if rows.schema.set == "job_gpu"]
        shown.append({key: it["given"] for key, it in told(rows).items()})
        file.unlink(missing_ok=True)
    assert shown == [{("42", "0"): "process", ("77", "1"): "file"}, {("42", "0"): "process"}]


@pytest.mark.parametrize("gpus", ["0", 3, [None], [[1]], {"a": 1}])
def test_job_file_with_strange_gpus(tmp_path: Path, gpus: object) -> None:
    """It is not used, and one sentence says why."""
    log: list[str] = []
    sampler = Sampler(Host(make_machine(tmp_path)), Settings(), log.append)
    folder = Path(sampler.host.root) / "run/joblens/jobs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "77.json").write_text(json.dumps({"id": "77", "uid": 1001, "gpus": gpus}))
    sampler.sample(0)
    assert ["gpus is" in line for line in log if "77.json" in line] == [True]

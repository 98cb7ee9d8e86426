"""Which job a GPU belongs to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.sampler import Sampler
from joblens.attribution.devices import Given, JobName, parse_devices
from joblens.attribution.gpu_shares import JOB_GPU, GpuShares
from joblens.collectors.gpu.reading import GPU, GPU_PROCESS, Device, Reading, Use
from joblens.core.config import Settings
from joblens.core.host import Host
from joblens.core.model import ABSENT, Key, Rows
from kernel import make_machine
from vendors import use_vendors

GIB = 1 << 30
ALICE: JobName = ("c", "42", "node1")
BOB: JobName = ("c", "43", "node1")
DEVICES = "sys/fs/cgroup/devices"
MOUNT = b"cgroup /sys/fs/cgroup/devices cgroup rw,devices 0 0\n"


def card(number: int, vendor: str = "nvidia", parent: str = "", **values: int) -> tuple[Key, list[int]]:
    """A GPU of 40 GiB that is idle and draws 100 W, with all processes visible. None: unknown."""
    known = {
        "up": 1, "processes": 0, "busy_ratio": 0, "memory_used_bytes": GIB, "memory_total_bytes": 40 * GIB,
        "power_watts": 100_000_000, **values,
    }  # fmt: skip
    name = f"{vendor}-{number}" if vendor != "nvidia" else f"GPU-{number}"
    key = (name, str(number), f"0000:0{number}:00.0", f"195:{number}", vendor, "A100", parent)
    return key, [known.get(column.name, ABSENT) for column in GPU.columns]


def rows(*cards: tuple[Key, list[int]]) -> Rows:
    return Rows(GPU, tuple(key for key, _ in cards), [value for _, values in cards for value in values])


def gpus(*busy: int) -> Rows:
    """Cards 0, 1, … that are busy so many percent."""
    return rows(*(card(number, busy_ratio=part * 100) for number, part in enumerate(busy)))


def uses(*found: tuple[str, int, int, int], seconds: int = ABSENT) -> Rows:
    """GPU, pid, memory, percent busy; and the time that each has run there."""
    values = [
        number
        for _, _, memory, part in found
        for number in (memory, part * 100 if part != ABSENT else ABSENT, seconds)
    ]
    return Rows(GPU_PROCESS, tuple((gpu, pid) for gpu, pid, _, _ in found), values)


def share(
    gpus: Rows,
    uses: Rows,
    owner_of: Callable[[int], JobName | None],
    given: Mapping[JobName, Given],
    sees: bool = True,
) -> Rows:
    return GpuShares().share(gpus, uses, owner_of, given, lambda job: sees)


def nobody(pid: int) -> None:
    """No pid belongs to a job."""


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
    """The three assigned but unused ones have rows with no process."""
    given = {ALICE: Given(frozenset(("0", "1", "2", "3")), "file")}
    found = told(share(gpus(90, 0, 0, 0), uses(("GPU-0", 7, 5 * GIB, 88)), {7: ALICE}.get, given))
    assert [key[1] for key in found] == ["0", "1", "2", "3"]
    assert [it["processes"] for it in found.values()] == [1, 0, 0, 0]
    assert [it["busy_ratio"] for it in found.values()] == [9000, 0, 0, 0]
    assert [it["memory_used_bytes"] for it in found.values()] == [5 * GIB, 0, 0, 0]
    assert {it["given"] for it in found.values()} == {"file"}


def test_two_jobs_on_one_card() -> None:
    """Each has the values of its own processes; power is attributed to neither."""
    use = uses(("GPU-0", 7, 5 * GIB, 60), ("GPU-0", 8, 2 * GIB, 20), ("GPU-0", 9, GIB, 10))
    found = told(share(gpus(90), use, {7: ALICE, 8: BOB, 9: BOB}.get, {}))
    assert found["42", "0"] == {
        "given": "process", "processes": 1, "busy_ratio": 6000, "memory_used_bytes": 5 * GIB,
        "memory_total_bytes": 40 * GIB,
    }  # fmt: skip
    assert (found["43", "0"]["busy_ratio"], found["43", "0"]["memory_used_bytes"]) == (3000, 3 * GIB)
    assert "busy_seconds" not in found["42", "0"]


def test_process_on_a_gpu_assigned_to_another_job() -> None:
    """Both have rows, each with how it is known."""
    found = told(
        share(
            gpus(90), uses(("GPU-0", 8, GIB, 90)), {8: BOB}.get, {ALICE: Given(frozenset(("GPU-0",)), "file")}
        )
    )
    assert (found["42", "0"]["given"], found["42", "0"]["processes"]) == ("file", 0)
    assert found["42", "0"]["busy_ratio"] == 0
    assert (found["43", "0"]["given"], found["43", "0"]["busy_ratio"]) == ("process", 9000)


def test_nobody() -> None:
    """A GPU with only unattributed processes belongs to no job."""
    assert share(gpus(90, 0), uses(("GPU-0", 8, GIB, 90)), nobody, {}).keys == ()


@pytest.mark.parametrize("name", ["GPU-1", "1", "nvidia:1", "0000:01:00.0", "195:1"])
def test_every_way_to_name_a_card(name: str) -> None:
    found = share(gpus(1, 2), uses(), nobody, {ALICE: Given(frozenset((name,)), "file")})
    assert [key[3] for key in found.keys] == ["GPU-1"]


def test_two_vendors() -> None:
    """A bare number is not that of the card which is only there for the screen."""
    both = rows(card(0, "intel"), card(0), card(1))
    for name, expected in (("0", ["GPU-0"]), ("intel:0", ["intel-0"]), ("nvidia:0", ["GPU-0"])):
        found = share(both, uses(), nobody, {ALICE: Given(frozenset((name,)), "file")})
        assert [key[3] for key in found.keys] == expected


@pytest.mark.parametrize(
    ("cards", "sees", "processes"),
    [
        (rows(card(0)), False, 0),
        (rows(card(0, processes=ABSENT)), True, None),  # as in a container
        (rows(card(0, "amd", processes=ABSENT)), True, 0),  # not root: others may be there, the job is not
        (rows(card(0, "amd", processes=ABSENT)), False, None),
        (rows(card(0, "amd", processes=ABSENT, up=0)), True, None),
        (rows(card(0, "jetson", processes=ABSENT)), True, None),
    ],
)
def test_processes_that_cannot_be_seen(cards: Rows, sees: bool, processes: int | None) -> None:
    """Zero processes are reported only if one would have been visible."""
    found = told(share(cards, uses(), nobody, {ALICE: Given(frozenset(("0",)), "file")}, sees))
    assert found["42", "0"].get("processes") == processes


INSTANCES = rows(
    card(0, processes=ABSENT, busy_ratio=ABSENT, energy_joules=7),
    (("MIG-a", "0:0", "0000:00:00.0", "234:30", "nvidia", "1g", "GPU-0"), card(0, power_watts=ABSENT)[1]),
    (("MIG-b", "0:1", "0000:00:00.0", "234:40", "nvidia", "1g", "GPU-0"), card(0, power_watts=ABSENT)[1]),
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Given(frozenset(("195:0", "234:40", "195:255")), "cgroup"), {"0:1"}),  # the card is opened too
        (Given(frozenset(("nvidia:0",)), "environment"), set()),  # CUDA takes one of them
        (Given(frozenset(("MIG-a",)), "environment"), {"0:0"}),
        (Given(frozenset(("0",)), "file"), {"0:0", "0:1"}),
        (Given(frozenset(("0000:00:00.0",)), "file"), {"0:0", "0:1"}),
    ],
)
def test_instances(given: Given, expected: set[str]) -> None:
    """A GPU in MIG mode belongs to no job, but its instances do; its power and energy are unattributed."""
    found = told(share(INSTANCES, uses(), nobody, {ALICE: given}))
    assert {index for _, index in found} == expected
    assert not any({"power_watts", "energy_joules"} & it.keys() for it in found.values())


def shared(shares: GpuShares, energy: int, use: Rows, how: str = "environment") -> dict[str, Any]:
    """Return job 42's share of one GPU with this energy counter; pid 7 is its own."""
    given = {ALICE: Given(frozenset(("GPU-0",)), how)}
    cards = rows(card(0, busy_ratio=9000, energy_joules=energy))
    found = told(shares.share(cards, use, {7: ALICE}.get, given, lambda job: True))
    return found["42", "0"]


def test_energy_is_counted_once() -> None:
    """From 0, over a reset of the driver, and not while somebody else works on the card too."""
    own, both = uses(("GPU-0", 7, 1, 50)), uses(("GPU-0", 7, 1, 50), ("GPU-0", 8, 1, 40))
    shares = GpuShares()
    steps = [(1000, own), (1100, own), (30, own), (50, both), (70, both), (90, own), (100, own)]
    found = [shared(shares, energy, use).get("energy_joules") for energy, use in steps]
    assert found == [0, 100, 130, None, None, 130, 140]


def test_idle_process_of_another_user() -> None:
    """An idle process with the GPU open, such as a desktop or daemon, takes nothing from the job."""
    quiet = uses(("GPU-0", 7, 1, 50), ("GPU-0", 8, 1, 0))
    working = uses(("GPU-0", 7, 1, 50), ("GPU-0", 8, 1, 40))
    unknown = uses(("GPU-0", 7, 1, ABSENT), ("GPU-0", 8, 5 * GIB, ABSENT))
    small = uses(("GPU-0", 7, 1, ABSENT), ("GPU-0", 8, 3 * GIB, ABSENT))
    assert shared(GpuShares(), 5, quiet)["busy_ratio"] == 9000
    assert shared(GpuShares(), 5, working)["busy_ratio"] == 5000
    assert "busy_ratio" not in shared(GpuShares(), 5, unknown)
    assert shared(GpuShares(), 5, small)["busy_ratio"] == 9000
    assert shared(GpuShares(), 5, working, how="cgroup")["busy_ratio"] == 9000
    shares = GpuShares()
    assert [shared(shares, 5, it).get("busy_ratio") for it in (quiet, unknown)] == [9000, 9000]


def test_time_of_processes_that_ended() -> None:
    """If only processes report busy time, the sum continues after one of them has ended."""
    shares = GpuShares()
    steps = [
        uses(("GPU-0", 7, 1, ABSENT), ("GPU-0", 9, 1, ABSENT), seconds=100),
        uses(("GPU-0", 7, 1, ABSENT), ("GPU-0", 9, 1, ABSENT), seconds=150),
        uses(("GPU-0", 7, 1, ABSENT), seconds=160),
        uses(),
    ]
    given = {ALICE: Given(frozenset(("GPU-0",)), "file")}
    found = [
        told(shares.share(rows(card(0)), use, {7: ALICE, 9: ALICE}.get, given, lambda job: True))["42", "0"]
        for use in steps
    ]
    assert [it["busy_seconds"] for it in found] == [200, 300, 310, 310]


def test_device_lists() -> None:
    """Devices with read and write access; a cgroup that may open all has no list."""
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
            values = {"up": 1, "processes": 1 - number, "busy_ratio": 5000, "memory_used_bytes": GIB}
            return Device(f"GPU-{number}", str(number), "", f"195:{number}", "nvidia", "A100", "", values)

        return lambda: Reading([device(0), device(1)], [Use("GPU-0", 4000, {"memory_bytes": GIB})])


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    use_vendors(monkeypatch, ("nvidia", Card().open))


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
def test_a_list_that_is_made_later(tmp_path: Path) -> None:
    """A scheduler makes the group first, which may open all, and then says what it may open."""
    mounts = (Path(make_machine(tmp_path)) / "proc/self/mounts").read_bytes()
    file = f"{DEVICES}/slurm/uid_1000/job_42/devices.list"
    changes: dict[str, bytes | None] = {"proc/self/mounts": mounts + MOUNT, file: b"a *:* rwm\n"}
    sampler = Sampler(Host(make_machine(tmp_path, changes)), Settings(), print)
    shown = []
    for tick in range(2):
        found = {sample.rows.schema.set: sample.rows for sample in sampler.sample(tick)}
        shown.append({index: it["given"] for (_, index), it in told(found["job_gpu"]).items()})
        (Path(sampler.host.root) / file).write_bytes(b"c 195:0 rwm\nc 195:1 rwm\n")
    assert shown == [{"0": "process"}, {"0": "cgroup", "1": "cgroup"}]


def test_process_that_is_new_on_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner is determined at once, although processes are read only every five seconds."""
    uses: list[Use] = []
    device = Device("GPU-0", "0", "", "195:0", "nvidia", "A100", "", {"up": 1, "processes": 1})
    vendor = ("nvidia", lambda host: lambda: Reading([device], uses))
    use_vendors(monkeypatch, vendor)
    machine = Path(make_machine(tmp_path))
    sampler = Sampler(Host(str(machine)), Settings(), print)
    sampler.sample(0)
    shutil.copytree(machine / "proc/4000", machine / "proc/4001")
    stat = (machine / "proc/4001/stat").read_text()
    (machine / "proc/4001/stat").write_text(stat.replace("4000", "4001", 1))
    uses.append(Use("GPU-0", 4001, {"memory_bytes": GIB}))
    readings = next(it for it in sampler.running if it.name == "processes")
    before = readings.readings
    for tick in (1, 2, 3):
        found = {sample.rows.schema.set: sample.rows for sample in sampler.sample(tick)}
        assert told(found["job_gpu"])["42", "0"]["processes"] == 1
    assert readings.readings == before + 1


@pytest.mark.usefixtures("cards")
def test_by_job_file(tmp_path: Path) -> None:
    """A file assigns GPU 1 to a job without processes: it has a row until the file is gone."""
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

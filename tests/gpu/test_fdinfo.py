"""Which processes use a GPU: parsing fdinfo, and finding users without reading all open files."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.collectors.gpu.fdinfo import Clients, parse_fdinfo
from joblens.core.host import Host

BUS = "0000:03:00.0"
OTHER_BUS = "0000:26:00.0"
FILE = "pos:\t0\nflags:\t0100002\nmnt_id:\t26\nino:\t685\n"


def client(number: int, *lines: str, bus: str = BUS, driver: str = "amdgpu") -> str:
    head = (f"drm-driver:\t{driver}", f"drm-client-id:\t{number}", f"drm-pdev:\t{bus}")
    return FILE + "".join(line + "\n" for line in (*head, *lines))


def compute(seconds: int) -> str:
    return f"drm-engine-compute:\t{seconds * 1_000_000_000} ns"


class CountingHost(Host):
    """Counts the open files of processes that it was asked for."""

    looked = 0

    def read_once(self, path: str) -> bytes:
        self.looked += "/fdinfo/" in path
        return super().read_once(path)


class Machine:
    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.proc.mkdir()
        self.host = CountingHost(str(folder))
        self.clients = Clients(self.host, ("amdgpu", "i915", "xe"))

    def open(self, pid: int, fd: int, text: str = FILE) -> None:
        file = self.proc / f"{pid}/fdinfo/{fd}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def close(self, pid: int, fd: int) -> None:
        (self.proc / f"{pid}/fdinfo/{fd}").unlink()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_amd() -> None:
    """Memory of the GPU, not of the host; all engines; the capacity of one is not a time."""
    found = parse_fdinfo(
        client(
            41,
            "drm-memory-vram:\t1024 KiB",
            "drm-memory-gtt: \t2048 KiB",
            "amd-requested-vram:\t4096 KiB",
            "drm-engine-gfx:\t5 ns",
            "drm-engine-enc_1:\t7 ns",
            "drm-engine-capacity-enc_1:\t2",
        ).encode()
    )
    assert found == ("amdgpu", BUS, "41", 1024 * 1024, {"gfx": 5, "enc_1": 7}, {})


def test_xe() -> None:
    """Cycles with the clock that counts them, and what is resident rather than what was asked for."""
    found = parse_fdinfo(
        client(
            3,
            "drm-total-vram0:\t3 MiB",
            "drm-resident-vram0:\t2 MiB",
            "drm-resident-vram1:\t1 MiB",
            "drm-resident-system:\t9 MiB",
            "drm-cycles-ccs:\t28257900",
            "drm-total-cycles-ccs:\t7655183225",
            "drm-engine-capacity-ccs:\t4",
            "drm-cycles-rcs:\t5",
            driver="xe",
        ).encode()
    )
    assert found is not None
    assert found.memory == 3 << 20
    assert found.cycles == {"ccs": (28_257_900, 7_655_183_225, 4)}  # the clock of rcs is missing


def test_other_files_are_none() -> None:
    """A file, a socket and an event of the kernel's have no card."""
    assert parse_fdinfo(FILE.encode()) is None
    assert parse_fdinfo(b"") is None
    assert parse_fdinfo(FILE.encode() + b"eventfd-count:                0\n") is None


@given(
    st.binary(max_size=300) | st.text("drm-engiyclsto:0123456789 \t\nKMiBns", max_size=300).map(str.encode)
)
def test_garbage(data: bytes) -> None:
    """Whatever it says, there are numbers or nothing."""
    for text in (data, b"drm-driver:\txe\n" + data, client(1).encode()[: len(data)] + data):
        found = parse_fdinfo(text)
        if found:
            values = [*found.engines.values(), found.memory or 0]
            assert all(type(value) is int and value >= 0 for value in values)


def test_a_client_is_counted_once(machine: Machine) -> None:
    """Duplicated descriptors and those that a child has inherited are the same opening: the eldest's."""
    text = client(7, "drm-memory-vram:\t100 KiB", compute(3))
    for pid, fd in ((20, 5), (20, 6), (21, 5)):
        machine.open(pid, fd, text)
    machine.open(21, 8, client(8, "drm-memory-vram:\t1 KiB"))
    machine.open(21, 9, client(7, "drm-memory-vram:\t2 KiB", bus=OTHER_BUS))  # ids are a card's own
    assert machine.clients.read() == {
        (BUS, 20): {"memory_bytes": 100 * 1024, "busy_seconds": 3_000_000_000},
        (BUS, 21): {"memory_bytes": 1024},
        (OTHER_BUS, 21): {"memory_bytes": 2048},
    }


def test_busy_time_never_goes_back(machine: Machine) -> None:
    """A driver may report less for a moment, and a closed client keeps its time."""
    seen = []
    for seconds in (10, 8, 12):
        machine.open(20, 5, client(7, compute(seconds)))
        machine.open(20, 6, client(8, compute(5)))
        seen.append(machine.clients.read()[BUS, 20]["busy_seconds"] // 1_000_000_000)
    machine.close(20, 6)
    seen.append(machine.clients.read()[BUS, 20]["busy_seconds"] // 1_000_000_000)
    assert seen == [15, 15, 17, 17]


def test_busy_part_by_the_cards_clock(machine: Machine) -> None:
    """Half of what four engines could do since, and unknown at first and after the clock was reset."""
    seen = []
    for busy, clock in ((0, 1000), (400, 1200), (10, 50), (10, 150)):
        lines = (f"drm-cycles-ccs:\t{busy}", f"drm-total-cycles-ccs:\t{clock}", "drm-engine-capacity-ccs:\t4")
        machine.open(20, 5, client(7, *lines, driver="xe"))
        seen.append(machine.clients.read()[BUS, 20].get("busy_ratio"))
    assert seen == [None, 5000, None, 0]


def test_a_process_opens_the_card_later(machine: Machine) -> None:
    """A process that opens a GPU after its first scan is found when its turn comes."""
    for pid in range(100, 150):
        machine.open(pid, 0)
    assert machine.clients.read() == {}
    machine.open(120, 3, client(7))
    assert list(machine.clients.read()) == [(BUS, 120)]
    machine.close(120, 3)
    assert machine.clients.read() == {}
    machine.open(120, 3, client(9))
    assert list(machine.clients.read()) == [(BUS, 120)]


def test_new_processes_come_first(machine: Machine) -> None:
    """A job that starts on a node full of others is seen by the next reading."""
    for pid in range(100, 1100):
        for fd in range(3):
            machine.open(pid, fd)
    machine.clients.read()
    machine.open(2000, 0)
    machine.open(2000, 3, client(7))
    assert list(machine.clients.read()) == [(BUS, 2000)]


def test_work_is_bounded(machine: Machine) -> None:
    """A reading scans a few hundred open files, however many there are, and each has its turn."""
    for pid in range(100, 1100):
        for fd in range(4):
            machine.open(pid, fd)
    machine.clients.read()
    machine.open(600, 9, client(7))
    readings = 0
    while not machine.clients.read():
        machine.host.looked = 0
        readings += 1
        assert readings < 20
        machine.clients.read()
        assert machine.host.looked < 350
    assert readings > 0


def test_wanted_processes_are_found_at_once(machine: Machine) -> None:
    """One that KFD reports is scanned before all others; an ended one is not an error."""
    for pid in range(100, 1100):
        for fd in range(4):
            machine.open(pid, fd)
    machine.clients.read()
    machine.open(300, 9, client(7))
    assert list(machine.clients.read([300, 4_000_000])) == [(BUS, 300)]


def test_ended_processes_are_forgotten(machine: Machine) -> None:
    """A pid is reused: the new process does not have the old one's time."""
    machine.open(20, 5, client(7, compute(10)))
    machine.clients.read()
    machine.close(20, 5)
    (machine.proc / "20/fdinfo").rmdir()
    (machine.proc / "20").rmdir()
    assert machine.clients.read() == {}
    machine.open(20, 5, client(8, compute(1)))
    assert machine.clients.read() == {(BUS, 20): {"busy_seconds": 1_000_000_000}}


def test_on_this_machine() -> None:
    """The real /proc is read, and other users' processes are not an error."""
    found = Clients(Host("/"), ("amdgpu",)).read([os.getpid(), 1])
    assert all(
        pid > 0 and values.keys() <= {"memory_bytes", "busy_seconds"} for (_, pid), values in found.items()
    )


def test_a_process_with_very_many_files(machine: Machine) -> None:
    """The GPU is among the first opened files; the others are not read."""
    machine.open(10, 7, client(1, compute(3)))
    for fd in range(100, 2600):
        machine.open(10, fd)
    assert machine.clients.read() == {(BUS, 10): {"busy_seconds": 3_000_000_000}}
    assert machine.host.looked <= 2 * 2000


def test_files_that_need_not_be_listed() -> None:
    """If the kernel counts them (Linux 6.2), the descriptors to read are known without listing."""
    host = Host()
    if not host.stat("proc/self/fd").st_size:
        pytest.skip("this kernel does not count open files")
    with ExitStack() as stack:
        files = [stack.enter_context(open(os.devnull)).fileno() for _ in range(30)]
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=files)
        stack.callback(child.communicate)
        clients = Clients(host, ("amdgpu",))
        assert 30 < len(clients._list(child.pid)) < 2000
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("joblens.collectors.gpu.fdinfo._OF_PROCESS", 20)
            assert clients._list(child.pid) == [str(number) for number in range(20)]

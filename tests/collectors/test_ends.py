from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.netlink_messages import LAST, make_task, pack_event, pack_message
from joblens.collectors.ends.connector import Event, Numbers, parse_event
from joblens.collectors.ends.netlink import Netlink
from joblens.collectors.ends.sets import how_ended
from joblens.collectors.ends.source import KernelEnds
from joblens.collectors.ends.taskstats import TaskEnd, cpu_times, parse_ended
from joblens.core.errors import MalformedError, PrivilegeError
from joblens.core.host import Host
from waiting import wait_for

NUMBER = st.integers(0, (1 << 64) - 1)
SMALL = st.integers(0, (1 << 32) - 1)
TASKS = st.builds(
    TaskEnd, st.integers(3, 1000), SMALL, st.integers(0, 255), NUMBER, NUMBER, NUMBER,
    st.binary(min_size=32, max_size=32), SMALL, SMALL, SMALL, *[NUMBER] * 13,
)  # fmt: skip


@given(TASKS, SMALL, st.booleans())
def test_taskstats_as_the_kernel_packs_it(task: TaskEnd, process: int, with_group: bool) -> None:
    """Every field of a record is read from its place, for every version of the format."""
    (found,) = parse_ended(pack_message(task, process, with_group))
    assert found.task == task
    assert found.process == (process if task.version >= 12 else 0)
    assert found.is_last == (with_group or bool(task.flags & LAST))


@given(TASKS, st.integers(0, 600), st.binary(max_size=8))
def test_cut_or_changed_messages(task: TaskEnd, at: int, other: bytes) -> None:
    """A message that is cut or changed is parsed or refused, and nothing else happens."""
    message = pack_message(task, 7, True)
    for data in (message[:at], message[:at] + other + message[at + len(other) :], other):
        with suppress(MalformedError):
            parse_ended(data)


@given(st.builds(Event, SMALL, SMALL, SMALL, NUMBER, *[SMALL] * 6))
def test_events_as_the_kernel_packs_them(event: Event) -> None:
    assert parse_event(pack_event(event)) == event
    with pytest.raises(MalformedError):
        parse_event(pack_event(event)[:-1])


@given(st.lists(st.booleans(), max_size=200), st.integers(0, (1 << 32) - 1))
def test_lost_events_are_counted(received: list[bool], first: int) -> None:
    """The numbers that are missing between received ones are the lost events, also where they wrap around."""
    numbers = Numbers()
    kept = [number for number, is_received in enumerate(received) if is_received]
    for number in kept:
        numbers.take(3, (first + number) % (1 << 32))
        numbers.take(4, number)  # another core counts by itself
    expected = kept[-1] - kept[0] + 1 - len(kept) if kept else 0
    assert numbers.lost == 2 * expected


def test_cpu_time_is_split_as_by_getrusage() -> None:
    """A thread that has never waited ran whenever it was ready and not waiting for a core."""
    waited = make_task(5, cpu_ns=9_000_000, user=4000, system=8000, elapsed=50_000)
    assert cpu_times(waited) == (3000, 6000)
    never = make_task(5, cpu_ns=100_000, elapsed=3191, run_delay_ns=2_415_213, voluntary_switches=0)
    assert cpu_times(never) == (776, 0)
    stolen = make_task(5, cpu_ns=34_000_000, elapsed=222_000, run_delay_ns=0, voluntary_switches=0)
    assert 34_000 < sum(cpu_times(stolen)) <= 44_000  # a tick more, of 1 to 10 ms


def test_how_it_ended() -> None:
    assert how_ended(3 << 8, -1) == (3, -1)
    assert how_ended(9, -1) == (-1, 9)
    assert how_ended(6 | 0x80, -1) == (-1, 6)  # with a core dump


def test_a_socket_that_overflows_says_so() -> None:
    """Messages that the kernel has dropped are counted as such, and those after them are received."""
    netlink = Netlink(socket.NETLINK_ROUTE, 1, "links")  # anyone may listen to these
    netlink._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    request = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
    for _ in range(200):
        netlink.send(18, 1 | 0x300, request)  # RTM_GETLINK, a dump
    found: list[bytes] = []
    netlink.receive(found.append, 1000)
    netlink.close()
    assert netlink.overruns
    assert found


def test_a_recording_has_no_events(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="recording"):
        KernelEnds(Host(str(tmp_path)))


def need_kernel_ends() -> KernelEnds:
    try:
        return KernelEnds(Host())
    except (FileNotFoundError, PrivilegeError) as error:
        pytest.skip(f"not available: {error}")


@pytest.mark.alone  # not in the pid namespace of a worker
def test_the_kernel_reports_a_process() -> None:
    """Fork, exec and exit of a process and its record have its pid and its exit code."""
    source = need_kernel_ends()
    child = subprocess.Popen([sys.executable, "-c", "import os; sum(range(10**6)); os._exit(7)"])
    child.wait()
    events: list[Event] = []
    ends: list[TaskEnd] = []

    def has_all() -> bool:
        events.extend(source.receive_events(100_000))
        ends.extend(it.task for data in source.receive_ends(100_000) for it in parse_ended(data))
        return any(it.thread == child.pid for it in ends)

    wait_for("its record", has_all)
    source.close()
    mine = [event for event in events if child.pid in event[4:8]]
    assert {0x1, 0x2, 0x80000000} <= {event.what for event in mine}
    (record,) = [it for it in ends if it.thread == child.pid]
    assert how_ended(record.status, -1) == (7, -1)
    assert record.parent == os.getpid()
    assert record.uid == os.getuid()
    assert sum(cpu_times(record)) > 1000
    assert source.received_ends


def test_an_ordinary_user_is_refused() -> None:
    """Without CAP_NET_ADMIN the reason is named."""
    if os.geteuid():
        pytest.skip("root is needed to become another user")
    code = (
        "import os\n"
        "from joblens.collectors.ends.source import KernelEnds\n"
        "from joblens.core.host import Host\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: KernelEnds(Host())\n"
        "except Exception as error: print(error)"
    )
    need_kernel_ends().close()
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "taskstats needs CAP_NET_ADMIN\n"

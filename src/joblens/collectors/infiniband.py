"""`infiniband`: traffic and errors of ports of InfiniBand, Omni-Path and RoCE adapters.

See Documentation/ABI/stable/sysfs-class-infiniband. By the InfiniBand specification error counters saturate
(some have 4, 8 or 16 bits): one that no longer grows may have reached its maximum.
"""

from __future__ import annotations

import re
from typing import Callable, List, NamedTuple, Optional, Set, Tuple

from joblens.collectors.number_files import UNAVAILABLE, natural, parse_number
from joblens.collectors.timeout import with_timeout
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Key, Rows, Schema

_FOLDER = "sys/class/infiniband"
_RATE = re.compile(rb"(\d{1,6})(?:\.(\d))?\d* Gb/sec\b")
_FULL = (1 << 32) - 1
_MISSING = b"N/A"  # `N/A (no PMA)`: the adapter has no such counter


class _Counter(NamedTuple):
    column: Column
    file: str
    extended: str = ""  # the 64-bit counter of old drivers, beside one of 32 bits that saturates


def _traffic(name: str, file: str, what: str, factor: int = 1) -> _Counter:
    return _Counter(Column(name, COUNTER, what, factor), "counters/" + file, f"counters_ext/{file}_64")


def _count(name: str, file: str, what: str) -> _Counter:
    return _Counter(Column(name, COUNTER, what), file)


_COUNTERS = (
    _traffic("received_bytes", "port_rcv_data", "bytes received", factor=4),  # 32-bit words
    _traffic("sent_bytes", "port_xmit_data", "bytes sent", factor=4),
    _traffic("received_packets", "port_rcv_packets", "packets received"),
    _traffic("sent_packets", "port_xmit_packets", "packets sent"),
    _count("send_wait_ticks", "counters/port_xmit_wait", "ticks with data to send but no credits"),
    _count(
        "send_discards",
        "counters/port_xmit_discards",
        "packets discarded because the port was down or congested",
    ),
    _count("receive_errors", "counters/port_rcv_errors", "packets received with errors"),
    _count(
        "receive_remote_physical_errors",
        "counters/port_rcv_remote_physical_errors",
        "packets received that were marked as damaged on their path",
    ),
    _count("symbol_errors", "counters/symbol_error", "symbol errors on the link"),
    _count(
        "link_recoveries",
        "counters/link_error_recovery",
        "successful recoveries of the link by retraining",
    ),
    _count("link_downed", "counters/link_downed", "failures of the link"),
    _count(
        "link_integrity_errors",
        "counters/local_link_integrity_errors",
        "times that the rate of link errors exceeded its threshold",
    ),
    _count(
        "buffer_overruns",
        "counters/excessive_buffer_overrun_errors",
        "overruns of the receive buffer",
    ),
    _count("management_drops", "counters/VL15_dropped", "management packets dropped for lack of buffers"),
    _count("read_requests", "hw_counters/rx_read_requests", "RDMA read requests received"),
    _count("write_requests", "hw_counters/rx_write_requests", "RDMA write requests received"),
    _count("atomic_requests", "hw_counters/rx_atomic_requests", "RDMA atomic requests received"),
    _count("out_of_sequence", "hw_counters/out_of_sequence", "packets received out of order"),
    _count("sequence_errors", "hw_counters/packet_seq_err", "NAKs for missing packets received"),
    _count("ack_timeouts", "hw_counters/local_ack_timeout_err", "requests without an ACK in time"),
    _count("receiver_not_ready", "hw_counters/rnr_nak_retry_err", "receiver-not-ready NAKs received"),
    _count(
        "out_of_buffer", "hw_counters/out_of_buffer", "packets dropped for lack of posted receive buffers"
    ),
    _count(
        "congestion_marks", "hw_counters/np_ecn_marked_roce_packets", "RoCE: packets marked with ECN received"
    ),
    _count("congestion_sent", "hw_counters/np_cnp_sent", "RoCE: congestion notifications sent"),
    _count("congestion_handled", "hw_counters/rp_cnp_handled", "RoCE: congestion notifications handled"),
)
SCHEMA = Schema(
    "infiniband",
    ("device", "port", "link"),
    (
        Column("up", GAUGE, "1 if the port is active"),
        Column("rate_bytes_per_second", GAUGE, "speed of the link", factor=12_500_000),
        *(counter.column for counter in _COUNTERS),
    ),
)


class _Port(NamedTuple):
    key: Key
    folder: str
    files: Tuple[str, ...]  # one per counter, "" if it is missing


@with_timeout(_FOLDER)
def infiniband(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    devices: List[str] = []
    ports: List[_Port] = []
    keys: Tuple[Key, ...] = ()

    def read() -> Tuple[Rows, ...]:
        nonlocal devices, ports, keys
        found = sorted(host.list(_FOLDER), key=natural)
        if found != devices:
            ports = [port for device in found for port in _find_ports(host, device)]
            devices, keys = found, tuple(port.key for port in ports)
        if not ports:
            raise FileNotFoundError(2, "no adapter", host.root + _FOLDER)
        return (Rows(SCHEMA, keys, [value for port in ports for value in _read_port(host, port)]),)

    return read


def _find_ports(host: Host, device: str) -> List[_Port]:
    folder = f"{_FOLDER}/{device}/ports"
    return [
        _Port(
            (device, number, _link(host, f"{folder}/{number}")),
            f"{folder}/{number}",
            _files(host, f"{folder}/{number}"),
        )
        for number in sorted(host.list_if_there(folder), key=natural)
    ]


def _link(host: Host, folder: str) -> str:
    """InfiniBand, or Ethernet for RoCE; before Linux 2.6.37 there was only InfiniBand."""
    data = _read(host, folder + "/link_layer")
    return data.decode("utf-8", "replace").strip() if data else "InfiniBand"


def _files(host: Host, folder: str) -> Tuple[str, ...]:
    kinds = ("counters", "counters_ext", "hw_counters")
    there = {f"{kind}/{name}" for kind in kinds for name in host.list_if_there(f"{folder}/{kind}")}
    chosen = (_first((counter.extended, counter.file), there) for counter in _COUNTERS)
    return tuple(f"{folder}/{file}" if file else "" for file in chosen)


def _first(files: Tuple[str, ...], there: Set[str]) -> str:
    return next((file for file in files if file in there), "")


def _read(host: Host, path: str) -> Optional[bytes]:
    try:
        return host.read(path)
    except OSError as error:
        if error.errno not in UNAVAILABLE:
            raise
        return None


def _read_port(host: Host, port: _Port) -> List[int]:
    state, rate = _read(host, port.folder + "/state"), _read(host, port.folder + "/rate")
    values = [
        ABSENT if state is None else parse_state(port.folder + "/state", state),
        ABSENT if rate is None else parse_rate(port.folder + "/rate", rate),
    ]
    for counter, file in zip(_COUNTERS, port.files):
        data = _read(host, file) if file else None
        values.append(ABSENT if data is None else parse_counter(file, data, bool(counter.extended)))
    return values


def parse_state(path: str, data: bytes) -> int:
    """Return 1 for `4: ACTIVE`, 0 for all other states."""
    number, colon, _ = data.partition(b":")
    if not colon or not number.strip().isdigit():
        raise MalformedError(path, f"expected a port state: {data[:80]!r}")
    return int(number.strip() == b"4")


def parse_rate(path: str, data: bytes) -> int:
    """`100 Gb/sec (4X EDR)` in tenths of a gigabit, as there is a rate of 2.5."""
    match = _RATE.match(data)
    if not match:
        raise MalformedError(path, f"expected a link rate: {data[:80]!r}")
    return int(match[1]) * 10 + int(match[2] or 0)


def parse_counter(path: str, data: bytes, is_traffic: bool) -> int:
    word = data.strip()
    if word.startswith(_MISSING):
        return ABSENT
    number = parse_number(path, word)
    # A traffic counter that has saturated at 32 bits has no meaning any more.
    return ABSENT if is_traffic and number == _FULL and "counters_ext" not in path else number

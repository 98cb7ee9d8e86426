"""`slingshot`: adapters of HPE Slingshot (Cassini), from their telemetry files, `VALUE@SECONDS.NANOSECONDS`.

See docs/ABI/testing/sysfs-class-cxi of HPE's driver. There are some thousand files per adapter; these are
those for traffic, pauses and errors.
"""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Tuple

from joblens.collectors.number_files import UNAVAILABLE, natural, parse_number
from joblens.collectors.timeout import with_timeout
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, Column, Key, Rows, Schema

_FOLDER = "sys/class/cxi"
_CLASSES = range(8)


class _Counter(NamedTuple):
    column: Column
    files: Tuple[str, ...]  # summed


def _count(name: str, file: str, what: str) -> _Counter:
    return _Counter(Column(name, COUNTER, what), (file,))


def _classes(name: str, file: str, what: str) -> _Counter:
    """The sum over eight traffic classes."""
    return _Counter(Column(name, COUNTER, what), tuple(f"{file}_{number}" for number in _CLASSES))


_COUNTERS = (
    _count("received_bytes", "hni_sts_rx_ok_octets", "bytes received"),
    _count("sent_bytes", "hni_sts_tx_ok_octets", "bytes sent"),
    _classes("received_packets", "hni_pkts_recv_by_tc", "packets received"),
    _classes("sent_packets", "hni_pkts_sent_by_tc", "packets sent"),
    _classes("receive_paused_cycles", "hni_rx_paused", "cycles with receiving paused, summed over classes"),
    _classes("send_paused_cycles", "hni_tx_paused", "cycles with sending paused, summed over classes"),
    _count("codewords_corrected", "hni_pcs_corrected_cw", "code words with corrected errors"),
    _count("codewords_uncorrected", "hni_pcs_uncorrected_cw", "code words with uncorrectable errors"),
    _count("receive_replays", "hni_llr_rx_replay_event", "link-level replays received"),
    _count("send_replays", "hni_llr_tx_replay_event", "link-level replays sent"),
    _count("request_timeouts", "pct_spt_timeouts", "packets without a response in time"),
    _count("connection_timeouts", "pct_sct_timeouts", "connections without a response in time"),
    _count("retried_packets", "pct_retry_srb_requests", "packets retransmitted"),
    _count("refused_no_connection", "pct_no_tct_nacks", "requests refused for lack of connections"),
    _count("refused_no_resource", "pct_no_trs_nacks", "requests refused for lack of response buffers"),
    _count(
        "host_blocked_cycles",
        "parbs_tarb_pi_posted_blocked_cnt",
        "cycles in which writes to host memory were blocked",
    ),
)
SCHEMA = Schema("slingshot", ("device",), tuple(counter.column for counter in _COUNTERS))


@with_timeout(_FOLDER)
def slingshot(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    devices: List[str] = []
    paths: List[List[Tuple[str, ...]]] = []
    keys: Tuple[Key, ...] = ()

    def read() -> Tuple[Rows, ...]:
        nonlocal devices, paths, keys
        found = sorted(host.list(_FOLDER), key=natural)
        if found != devices:
            paths = [_paths(host, device) for device in found]
            devices, keys = found, tuple((device,) for device in found)
        if not devices:
            raise FileNotFoundError(2, "no adapter", host.root + _FOLDER)
        return (Rows(SCHEMA, keys, [_read(host, files) for device in paths for files in device]),)

    return read


def _paths(host: Host, device: str) -> List[Tuple[str, ...]]:
    folder = f"{_FOLDER}/{device}/device/telemetry"
    there = set(host.list_if_there(folder))  # a virtual function has none
    return [
        tuple(f"{folder}/{file}" for file in counter.files) if there.issuperset(counter.files) else ()
        for counter in _COUNTERS
    ]


def _read(host: Host, files: Tuple[str, ...]) -> int:
    total = 0
    for path in files:
        try:
            value = parse_telemetry(path, host.read(path))
        except OSError as error:
            if error.errno not in UNAVAILABLE:
                raise
            return ABSENT
        if value == ABSENT:
            return ABSENT
        total += value
    return total if files and total < 1 << 63 else ABSENT


def parse_telemetry(path: str, data: bytes) -> int:
    value, at, _ = data.strip().partition(b"@")
    if not at:
        raise MalformedError(path, f"value without timestamp: {data[:80]!r}")
    return parse_number(path, value)

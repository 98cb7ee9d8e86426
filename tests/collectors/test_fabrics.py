"""InfiniBand, RoCE and Slingshot: what went through a port, and what went wrong."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.sampler import Sampler
from joblens.collectors.infiniband import infiniband, parse_counter, parse_rate, parse_state
from joblens.collectors.slingshot import parse_telemetry, slingshot
from joblens.core.config import Settings
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT, Rows

NODES = Path(__file__).parents[1] / "nodes"
PORTS = "sys/class/infiniband"
TELEMETRY = "sys/class/cxi/cxi0/device/telemetry"


@pytest.fixture
def fabrics(tmp_path: Path) -> Path:
    return shutil.copytree(NODES / "fabrics", tmp_path / "fabrics")


@pytest.fixture
def cray(tmp_path: Path) -> Path:
    return shutil.copytree(NODES / "cray", tmp_path / "cray")


def value(rows: Rows, column: str, *key: str) -> float | None:
    """In base units, of the one row whose key begins so."""
    at = rows.schema.position(column)
    (number,) = [number for number, found in enumerate(rows.keys) if found[: len(key)] == key]
    found = rows.row(number)[at]
    return None if found == ABSENT else rows.schema.columns[at].in_base_units(found)


def test_infiniband_by_hand() -> None:
    """Data is counted in words of four bytes; a speed is bits, eight of which are a byte."""
    (rows,) = infiniband(Host(str(NODES / "fabrics")))()
    assert rows.keys == (
        ("mlx4_0", "1", "InfiniBand"),
        ("mlx4_0", "2", "InfiniBand"),
        ("mlx5_0", "1", "InfiniBand"),
        ("mlx5_1", "1", "Ethernet"),
    )
    assert value(rows, "received_bytes", "mlx5_0") == 250_000_000_000 * 4
    assert value(rows, "rate_bytes_per_second", "mlx5_0") == 200e9 / 8
    assert value(rows, "rate_bytes_per_second", "mlx4_0", "2") == 2.5e9 / 8
    assert value(rows, "send_wait_ticks", "mlx5_0") == 4321
    assert [value(rows, "up", "mlx4_0", port) for port in ("1", "2")] == [1, 0]


def test_roce_by_hand() -> None:
    """On Ethernet the same files, and notes of congestion beside them."""
    (rows,) = infiniband(Host(str(NODES / "fabrics")))()
    assert value(rows, "write_requests", "mlx5_1") == 77
    assert value(rows, "congestion_sent", "mlx5_1") == 101
    assert value(rows, "congestion_sent", "mlx5_0") is None


def test_counters_of_32_bits() -> None:
    """The 64-bit counter is used if there is one. A saturated 32-bit one is absent."""
    (rows,) = infiniband(Host(str(NODES / "fabrics")))()
    assert value(rows, "received_bytes", "mlx4_0", "1") == 5_000_000_000 * 4
    assert value(rows, "sent_bytes", "mlx4_0", "1") is None
    assert value(rows, "sent_packets", "mlx4_0", "1") == 123
    assert value(rows, "symbol_errors", "mlx4_0", "1") == 65535
    assert value(rows, "send_wait_ticks", "mlx4_0", "1") is None  # N/A (no PMA)


def test_an_adapter_goes_away_and_comes_back(fabrics: Path) -> None:
    """The others are read on. What comes back is a row again."""
    reading = infiniband(Host(str(fabrics)))
    first = reading()[0]
    assert reading()[0].keys is first.keys
    (fabrics / PORTS / "mlx5_1").rename(fabrics / "aside")
    assert [key[0] for key in reading()[0].keys] == ["mlx4_0", "mlx4_0", "mlx5_0"]
    (fabrics / "aside").rename(fabrics / PORTS / "mlx5_1")
    assert reading()[0].keys == first.keys


class StubbornHost(Host):
    """A host whose driver refuses some counters."""

    def read(self, path: str) -> bytes:
        if path.endswith(("port_rcv_data", "rate", "hni_sts_rx_ok_octets")):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return super().read(path)


def test_refused_counters_are_absent() -> None:
    """Counters that the driver refuses are absent, the others are read, and nothing fails."""
    (rows,) = infiniband(StubbornHost(str(NODES / "fabrics")))()
    assert value(rows, "received_bytes", "mlx5_0") is None
    assert value(rows, "rate_bytes_per_second", "mlx5_0") is None
    assert value(rows, "sent_bytes", "mlx5_0") == 125_000_000_000 * 4
    (rows,) = slingshot(StubbornHost(str(NODES / "cray")))()
    assert value(rows, "received_bytes", "cxi0") is None
    assert value(rows, "sent_bytes", "cxi0") == 8_000_000_000


class FullHost(Host):
    def read(self, path: str) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)


@pytest.mark.parametrize(("collector", "node"), [(infiniband, "fabrics"), (slingshot, "cray")])
def test_agents_own_errors_are_raised(collector: Callable[[Host], Callable[[], object]], node: str) -> None:
    """Too many open files is an error of the agent, not of the adapter."""
    with pytest.raises(OSError, match="open files"):
        collector(FullHost(str(NODES / node)))()


def test_slingshot_by_hand() -> None:
    """The time behind a value is cut off; classes of traffic are added; what a card lacks is absent."""
    (rows,) = slingshot(Host(str(NODES / "cray")))()
    assert rows.keys == (("cxi0",), ("cxi1",))
    assert value(rows, "received_bytes", "cxi1") == 9_000_000_001
    assert value(rows, "received_packets", "cxi0") == sum(1000 * number for number in range(1, 9))
    assert value(rows, "send_paused_cycles", "cxi0") == sum(range(8))
    assert value(rows, "refused_no_resource", "cxi0") == 6
    assert value(rows, "refused_no_resource", "cxi1") is None


def test_slingshot_without_telemetry(cray: Path) -> None:
    """A virtual function is a device without counters; one class missing makes the sum unknown."""
    shutil.rmtree(cray / "sys/class/cxi/cxi1/device/telemetry")
    (cray / TELEMETRY / "hni_tx_paused_5").unlink()
    (rows,) = slingshot(Host(str(cray)))()
    assert set(rows.row(1)) == {ABSENT}
    assert value(rows, "send_paused_cycles", "cxi0") is None
    assert value(rows, "receive_paused_cycles", "cxi0") == 20


@pytest.mark.parametrize("collector", [infiniband, slingshot])
def test_nothing_there(collector: Callable[[Host], Callable[[], object]], tmp_path: Path) -> None:
    """No folder, or an empty one: no such adapter, which is not a failure."""
    with pytest.raises(FileNotFoundError):
        collector(Host(str(tmp_path)))()
    for folder in ("infiniband", "cxi"):
        (tmp_path / "sys/class" / folder).mkdir(parents=True)
    with pytest.raises(FileNotFoundError):
        collector(Host(str(tmp_path)))()


def test_machines_without_fabrics_say_nothing() -> None:
    """On a node that has none of it nothing is logged and no set is there."""
    log: list[str] = []
    sampler = Sampler(Host(str(NODES / "plain")), Settings(), log.append)
    sampler.sample(0)
    assert not {"infiniband", "slingshot", "lustre", "nfs", "energy"} & set(sampler.latest)
    assert log == []


GARBAGE = st.one_of(
    st.binary(max_size=60),
    st.from_regex(rb"-?[0-9]{0,25}(@[0-9.]{0,20})?\n?", fullmatch=True),
    st.from_regex(rb"[0-9]{0,9}(: [A-Z]{0,9})?(\.[0-9]{0,3})?( Gb/sec)?( \(4X\))?\n?", fullmatch=True),
)


@given(GARBAGE)
def test_parsers(data: bytes) -> None:
    """A number, absent, or malformed; nothing else."""
    parsers: list[Callable[[], int]] = [
        lambda: parse_counter("path", data, True),
        lambda: parse_state("path", data),
        lambda: parse_rate("path", data),
        lambda: parse_telemetry("path", data),
    ]
    for parse in parsers:
        with contextlib.suppress(MalformedError):
            assert ABSENT <= parse() < 1 << 63


PORT_FILES = [
    f"{PORTS}/mlx5_0/ports/1/{name}"
    for name in (
        "state",
        "rate",
        "link_layer",
        "counters/port_rcv_data",
        "counters/link_downed",
        "hw_counters/np_cnp_sent",
    )
]


@given(st.dictionaries(st.sampled_from(PORT_FILES), GARBAGE, min_size=1))
def test_damaged_port(changes: dict[str, bytes]) -> None:
    """Rows that fit their schema, or one file that is named as malformed."""
    with tempfile.TemporaryDirectory() as folder:
        for name in PORT_FILES:
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(changes.get(name, b"1: 1\n" if name.endswith("state") else b"1 Gb/sec\n"))
        host = Host(folder)
        with contextlib.suppress(MalformedError):
            (rows,) = infiniband(host)()
            assert len(rows.values) == len(rows.keys) * len(rows.schema.columns)
            assert all(type(number) is int and ABSENT <= number < 1 << 63 for number in rows.values)
        host.close()

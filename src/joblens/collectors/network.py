"""`network`: /proc/net/dev, bytes, packets and errors of each interface."""

from __future__ import annotations

from joblens.core.counter_file import CounterFile
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import COUNTER, Column, Key, Rows, Schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Tuple

_PATH = "proc/net/dev"
_FIELDS = 16


def _counter(name: str, what: str) -> Column:
    return Column(name, COUNTER, what)


SCHEMA = Schema(
    "network",
    ("interface",),
    (
        _counter("received_bytes", "bytes received"),
        _counter("received_packets", "packets received"),
        _counter("receive_errors", "packets received with errors"),
        _counter("receive_drops", "received packets dropped for lack of buffers"),
        _counter("receive_fifo_errors", "packets lost to overruns of the receive buffer"),
        _counter("receive_frame_errors", "packets received with a framing error"),
        _counter("received_compressed", "compressed packets received"),
        _counter("received_multicast", "multicast packets received"),
        _counter("sent_bytes", "bytes sent"),
        _counter("sent_packets", "packets sent"),
        _counter("send_errors", "packets that could not be sent"),
        _counter("send_drops", "packets dropped before they were sent"),
        _counter("send_fifo_errors", "packets lost to overruns of the send buffer"),
        _counter("collisions", "collisions on the wire"),
        _counter("carrier_errors", "packets lost because of a missing carrier"),
        _counter("sent_compressed", "compressed packets sent"),
    ),
)


def network(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    names: List[bytes] = []
    keys: Tuple[Key, ...] = ()

    def parse(data: bytes) -> Tuple[Rows, ...]:
        nonlocal names, keys
        tokens = parse_tokens(data)
        found = tokens[:: _FIELDS + 1]
        if found != names:
            keys = tuple((name.decode("utf-8", "replace"),) for name in found)
            if len(set(keys)) < len(keys):
                raise MalformedError(_PATH, "duplicate interface")
            names = found
        del tokens[:: _FIELDS + 1]
        try:
            values = list(map(int, tokens))
        except ValueError as error:
            raise MalformedError(_PATH, str(error)) from None
        return (Rows(SCHEMA, keys, values),)

    return CounterFile(host, _PATH, parse, _describe_line)


def _describe_line(number: int, tokens: List[bytes]) -> str:
    return "T" + "V" * _FIELDS if tokens and number > 1 else "L"


def parse_tokens(data: bytes) -> List[bytes]:
    """Return name and 16 numbers per interface. Old kernels write `eth0:123`; names contain no colon."""
    head, _, rest = data.partition(b"\n")
    titles, _, body = rest.partition(b"\n")
    tokens = body.replace(b":", b" ").split()
    if not head.startswith(b"Inter-") or data[-1:] != b"\n" or titles.count(b"|") != 2:
        raise MalformedError(_PATH, "the two header lines are missing")
    if len(tokens) % (_FIELDS + 1) or body.count(b"\n") * (_FIELDS + 1) != len(tokens):
        raise MalformedError(_PATH, f"an interface without {_FIELDS} numbers")
    return tokens

"""The user or host at the other end of a connection, as the kernel reports it."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Optional, Set, Tuple, Union

Holder = Union[int, bytes]  # a uid of this machine, else the network_of the address

# linux/sock_diag.h, linux/inet_diag.h: a socket is requested by its addresses, which needs no search.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST = 4, 20, 1
_HEAD = struct.Struct("=IHHII")
_STATE = _HEAD.size + 1
_UID = _HEAD.size + 4 + 48 + 12
_ANY_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_LISTENS = 10  # TCP_LISTEN: no connection has these addresses, but a listener has the port
_MAPPED, _LOOPBACK = bytes(10) + b"\xff\xff", b"loopback"


def network_of(address: str) -> bytes:
    """Return the prefix that one user or machine can own: all of loopback, or 64 bits of IPv6."""
    return _LOOPBACK if is_loopback(address) else _pack(address)[:8]


def is_loopback(address: str) -> bool:
    packed = _pack(address)
    return (packed[0] == 127 and len(packed) == 4) or packed == bytes(15) + b"\1"


def _pack(address: str) -> bytes:
    """Return 4 bytes for an IPv4 address, also for one mapped into IPv6."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    return packed[12:] if packed.startswith(_MAPPED) else packed


def unix_peer(channel: socket.socket) -> Tuple[int, int]:
    """Return pid and uid (unix(7)), or 0 and -1 for another kind of socket."""
    if channel.family != socket.AF_UNIX:
        return 0, -1
    pid, uid, _ = struct.unpack("iII", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid), int(uid)


def listeners(port: int) -> Set[int]:
    """Return the users whose processes listen at a TCP port of this machine (proc(5), net/tcp)."""
    found = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(path, encoding="ascii") as file:
            for line in file:
                fields = line.split()
                if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
                    found.add(int(fields[7]))
    return found


class Peers:
    """Finds the holder of a connection: the uid if the other end is on this machine, else its address."""

    def __init__(self) -> None:
        self._netlink: Optional[socket.socket] = None
        self._number = 0

    def holder(self, channel: socket.socket) -> Holder:
        if channel.family == socket.AF_UNIX:
            return unix_peer(channel)[1]
        own, other = channel.getsockname(), channel.getpeername()
        try:
            uid = self._uid(own, other)
        except (OSError, ValueError, struct.error, IndexError):  # no support in the kernel, or a stale answer
            self.close()
            uid = None
        return network_of(other[0]) if uid is None else uid

    def _uid(self, own: Tuple[str, int], other: Tuple[str, int]) -> Optional[int]:
        """Return None if the other end is on another machine, or closed: then the kernel reports root, or a
        listener at its port."""
        if self._netlink is None:
            how = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            self._netlink = socket.socket(socket.AF_NETLINK, how, _NETLINK_SOCK_DIAG)
        ports = struct.pack("!HH", other[1], own[1])
        addresses = [_pack(end[0]) for end in (other, own)]
        family = socket.AF_INET if len(addresses[0]) == 4 else socket.AF_INET6
        asked = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
        asked += ports + b"".join(it.ljust(16, b"\0") for it in addresses) + _ANY_COOKIE
        self._number = (self._number + 1) % (1 << 32)
        size = _HEAD.size + len(asked)
        self._netlink.send(_HEAD.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST, self._number, 0) + asked)
        answer = self._netlink.recv(4096)
        _, kind, _, number, _ = _HEAD.unpack_from(answer)
        if number != self._number:
            raise ValueError("answer to another request")
        if kind != _SOCK_DIAG_BY_FAMILY:
            return None
        uid, inode = struct.unpack_from("=II", answer, _UID)
        return int(uid) if inode and answer[_STATE] != _LISTENS else None

    def close(self) -> None:
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

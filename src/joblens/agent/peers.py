"""Who is at the other end of a connection, by the kernel's word."""

from __future__ import annotations

import socket
import struct
from typing import Optional, Tuple, Union

Holder = Union[int, bytes]  # a user of this machine, else the address, of which IPv6 gives out 2**64 each

# linux/sock_diag.h, linux/inet_diag.h: one socket is asked for by its addresses, and found without a search.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST = 4, 20, 1
_HEAD = struct.Struct("=IHHII")
_UID = _HEAD.size + 4 + 48 + 12
_ANY_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)


def unix_peer(channel: socket.socket) -> Tuple[int, int]:
    """Process and user (unix(7)); 0 and -1 of another kind of socket."""
    if channel.family != socket.AF_UNIX:
        return 0, -1
    pid, uid, _ = struct.unpack("iII", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid), int(uid)


class Peers:
    """Finds the holder of a connection: the user where the other end is on this machine, else the address."""

    def __init__(self) -> None:
        self._netlink: Optional[socket.socket] = None
        self._number = 0

    def holder(self, channel: socket.socket) -> Holder:
        if channel.family == socket.AF_UNIX:
            return unix_peer(channel)[1]
        own, other = channel.getsockname(), channel.getpeername()
        if own[0] == other[0]:
            try:
                uid = self._uid(channel.family, own, other)
            except (
                OSError,
                ValueError,
                struct.error,
                IndexError,
            ):  # a kernel without it, or another's answer
                self.close()
                uid = None
            if uid is not None:
                return uid
        return socket.inet_pton(channel.family, other[0])[:8]

    def _uid(self, family: int, own: Tuple[str, int], other: Tuple[str, int]) -> Optional[int]:
        """None of a socket that its process has closed: the kernel says of such that they are root's."""
        if self._netlink is None:
            how = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            self._netlink = socket.socket(socket.AF_NETLINK, how, _NETLINK_SOCK_DIAG)
        ports = struct.pack("!HH", other[1], own[1])
        addresses = [socket.inet_pton(family, end[0]).ljust(16, b"\0") for end in (other, own)]
        asked = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
        asked += ports + b"".join(addresses) + _ANY_COOKIE
        self._number = (self._number + 1) % (1 << 32)
        size = _HEAD.size + len(asked)
        self._netlink.send(_HEAD.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST, self._number, 0) + asked)
        answer = self._netlink.recv(4096)
        _, kind, _, number, _ = _HEAD.unpack_from(answer)
        if number != self._number:
            raise ValueError("the answer to another question")
        if kind != _SOCK_DIAG_BY_FAMILY:
            return None
        uid, inode = struct.unpack_from("=II", answer, _UID)
        return int(uid) if inode else None

    def close(self) -> None:
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

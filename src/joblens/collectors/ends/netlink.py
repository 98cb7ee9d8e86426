"""A netlink socket (netlink(7)): the kernel sends a datagram for each event.

If they are not received in time, the kernel drops some, and the next call fails with ENOBUFS.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Callable, Iterator, Tuple

from joblens.core.errors import MalformedError, PrivilegeError

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
ERROR = 2
_ATTRIBUTE = struct.Struct("=HH")
_ERRNO = struct.Struct("=i")
_RCVBUFFORCE = 33  # SO_RCVBUFFORCE of socket(7), which Python does not name
_BUFFER = 16 << 20  # of kernel memory at most, for the events of some 10,000 processes
_LARGEST = 16_384
_KERNEL = 0  # its port
_REPLY_SECONDS = 1.0
_ADMIN = "CAP_NET_ADMIN"


class Netlink:
    def __init__(self, protocol: int, groups: int, what: str) -> None:
        """Raises FileNotFoundError if this kernel or namespace does not have the protocol."""
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
        try:
            self._socket = socket.socket(socket.AF_NETLINK, kind, protocol)
        except OSError as error:
            raise FileNotFoundError(
                error.errno, f"{what} is not in this kernel or network namespace"
            ) from None
        self.what = what
        self.overruns = 0  # receives that failed because the kernel had dropped events
        try:
            self._socket.bind((0, groups))
            self._socket.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, _BUFFER)
        except PermissionError:
            self._socket.close()
            raise PrivilegeError(what, _ADMIN) from None
        self._socket.setblocking(False)

    def close(self) -> None:
        self._socket.close()

    def send(self, kind: int, flags: int, body: bytes) -> None:
        self._socket.send(HEADER.pack(HEADER.size + len(body), kind, flags, 1, 0) + body)

    def reply(self) -> bytes:
        """Wait for a datagram. Raises PrivilegeError or OSError if it reports an error."""
        self._socket.settimeout(_REPLY_SECONDS)
        try:
            data = self._socket.recv(_LARGEST)
        except socket.timeout:
            raise FileNotFoundError(errno.ENOENT, f"{self.what}: the kernel does not respond") from None
        finally:
            self._socket.setblocking(False)
        if len(data) >= HEADER.size + _ERRNO.size and HEADER.unpack_from(data)[1] == ERROR:
            self._check(-_ERRNO.unpack_from(data, HEADER.size)[0])
        return data

    def _check(self, code: int) -> None:
        if code in (errno.EPERM, errno.EACCES):
            raise PrivilegeError(self.what, _ADMIN)
        if code:
            raise FileNotFoundError(code, f"{self.what}: {os.strerror(code)}")

    def receive(self, take: Callable[[bytes], None], most: int) -> int:
        """Pass what has been received to `take`, and return the number of datagrams."""
        count = 0
        receive = self._socket.recvfrom
        while count < most:
            try:
                data, sender = receive(_LARGEST)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.overruns += 1
                continue
            count += 1
            if sender[0] == _KERNEL:
                take(data)
        return count


def pack_attribute(kind: int, value: bytes) -> bytes:
    size = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(size, kind) + value + b"\0" * (-size % 4)


def parse_attributes(data: bytes, at: int, end: int) -> Iterator[Tuple[int, int, int]]:
    """Yield kind, first byte and end of each attribute."""
    while at + _ATTRIBUTE.size <= end:
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < _ATTRIBUTE.size or at + size > end:
            raise MalformedError("netlink", f"an attribute of {size} bytes in {end - at}")
        yield (
            kind & 0x3FFF,
            at + _ATTRIBUTE.size,
            at + size,
        )  # without the flags NLA_F_NESTED and _NET_BYTEORDER
        at += size + (-size % 4)

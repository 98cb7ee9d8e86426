"""A port of this machine, as seen from a network of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress

from .cluster import Holder

# A socket stays in the network that it was made in, whoever has it: it is made there, and handed over.
_LISTEN = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
socket.send_fds(socket.socket(fileno=0), [b"x"], [listener.fileno()])
"""


def let_reach(stack: ExitStack, holder: Holder, port: int) -> None:
    """What connects to that port on the holder's loopback gets to the same port on ours."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = holder.inside(sys.executable, "-c", _LISTEN, str(port))
        subprocess.run(command, stdin=theirs.fileno(), check=True, timeout=60)
        _, (file,), _, _ = socket.recv_fds(ours, 1, 1)
    listener = socket.socket(fileno=file)
    thread = threading.Thread(target=_accept, args=(listener, port))
    thread.start()
    stack.callback(thread.join)
    stack.callback(listener.close)
    stack.callback(_shut, listener)


def _accept(listener: socket.socket, port: int) -> None:
    while True:
        try:
            inside, _ = listener.accept()
        except OSError:  # it was shut
            return
        try:
            outside = socket.create_connection(("127.0.0.1", port))
        except OSError:  # nobody is there now
            inside.close()
            continue
        left = threading.Semaphore(1)
        for source, target in ((inside, outside), (outside, inside)):
            threading.Thread(target=_copy, args=(source, target, left), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket, left: threading.Semaphore) -> None:
    """Until either side ends. The second of the two who copy closes both."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        _shut(end)
    if not left.acquire(blocking=False):
        source.close()
        target.close()


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)

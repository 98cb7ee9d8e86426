"""Somebody who listens at the hub's port while the hub is down: `impostor.py PORT [STATUS]`.

It gives a token of its own to who asks for one, or answers with STATUS, signs its answers with it, and
acknowledges whatever comes. It says `going` when it listens, and ends with its input.
"""

from __future__ import annotations

import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from joblens.wire.mac import ANSWER, Signer

USER = 61_503  # where root runs it: not the hub's
TOKEN = b"7" * 64
_ACKNOWLEDGED = b'{"acknowledged": [0, 4611686018427387904]}\n'


status = 200


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(TOKEN + b"\n", status)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(_ACKNOWLEDGED)

    def _answer(self, text: bytes, status: int = 200) -> None:
        mac = self.headers.get("Authorization", "").rpartition(" ")[2].encode()
        self.send_response(status)
        self.send_header(ANSWER, Signer(TOKEN).answer_mac(mac, status, "", text))
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        print(self.command, self.headers.get("Authorization", ""), flush=True)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def main(port: str, answers: str = "200") -> None:
    global status  # noqa: PLW0603
    import encodings.idna  # noqa: F401 (later it may not be readable)

    status = int(answers)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("going", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])

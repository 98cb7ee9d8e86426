from __future__ import annotations

import argparse
import json
import re
import sys
from ipaddress import IPv6Address

from joblens.core.config import Settings, split_address
from joblens.core.errors import UsageError

EXAMPLE = """example:
  joblens prometheus-config node1 node2 > prometheus.yml
  joblens prometheus-config --interval 1 jetson.local:9477"""
_HOST = re.compile(r"[\w.-]+|\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]", re.ASCII)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    port = split_address(Settings().listen)[1]
    parser.add_argument("host", nargs="+", metavar="HOST", help="host of an agent, with or without :PORT")
    parser.add_argument(
        "--port", type=int, default=port, metavar="N", help="port of the agents (default %(default)s)"
    )
    parser.add_argument(
        "--interval", type=float, default=5.0, metavar="S", help="seconds between two scrapes (default 5)"
    )
    parser.add_argument(
        "--token-file", metavar="F", help="file with the agents' token, on the machine of Prometheus"
    )


def run(options: argparse.Namespace) -> int:
    sys.stdout.write(render(options.host, options.port, options.interval, options.token_file))
    return 0


def render(hosts: list[str], port: int, interval: float, token_file: str | None = None) -> str:
    """Render a complete prometheus.yml. JSON strings are valid YAML."""
    targets = [_target(host, port) for host in hosts]
    lines = [
        "# For Prometheus: prometheus --config.file=THIS_FILE",
        "# The agents must be reachable for Prometheus: joblens agent --listen 0.0.0.0:PORT",
        "scrape_configs:",
        "  - job_name: joblens",
        f"    scrape_interval: {_duration(interval)}",
        f"    scrape_timeout: {_duration(min(interval, 10.0))}",
    ]
    if token_file:
        lines += ["    authorization:", f"      credentials_file: {json.dumps(token_file)}"]
    lines += ["    static_configs:", "      - targets:"]
    lines += [f"          - {json.dumps(target)}" for target in dict.fromkeys(targets)]
    return "\n".join(lines) + "\n"


def _target(text: str, port: int) -> str:
    if _is_ipv6(text):
        text = f"[{text}]"
    host, colon, own = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, own = text, str(port)
    if not _HOST.fullmatch(host):
        raise UsageError(f"{text!r} is not a host name")
    if not own.isascii() or not own.isdigit() or not 0 < int(own[:6]) < 65536:
        raise UsageError(f"{own!r} is not a port")
    return f"{host}:{int(own)}"


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _duration(seconds: float) -> str:
    milliseconds = round(seconds * 1000) if 0 < seconds < 86_400 * 365 else 0
    if milliseconds < 1:
        raise UsageError(f"{seconds} is not a valid interval in seconds")
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"

"""What a Prometheus of a session's own is told: whom to scrape, and the password that it asks for, hashed."""

from __future__ import annotations

import ctypes
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from joblens.core.errors import OutsideError

_COST = 4  # of bcrypt, the lowest: the password has 256 random bits, which nobody finds by trying
_BASE64 = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_WORD = re.compile(r"[A-Za-z0-9._~+/=:-]+")


class Target(NamedTuple):
    """One agent, as Prometheus finds it."""

    node: str
    cluster: str
    address: str  # HOST:PORT
    token: str


def scrape_config(targets: Iterable[Target], interval: float) -> str:
    """Of Prometheus. A string in JSON is one in YAML. Each agent has a token of its own."""
    pace = f"{max(round(interval * 1000), 1)}ms"
    lines = [f"global: {{scrape_interval: {pace}, scrape_timeout: {pace}}}", "scrape_configs:"]
    for target in sorted(targets):
        if not _WORD.fullmatch(target.token):
            raise OutsideError(f"the token of {target.node} is none")
        labels = {"node": target.node, "cluster": target.cluster, "instance": target.node, "job": "joblens"}
        lines += [
            f"  - job_name: {json.dumps('joblens ' + target.node)}",
            "    honor_labels: true",
            f"    authorization: {{credentials: {json.dumps(target.token)}}}",
            f"    metric_relabel_configs: {json.dumps(_named_alike(labels))}",
            f"    static_configs: [{json.dumps({'targets': [target.address], 'labels': labels})}]",
        ]
    return "\n".join(lines if len(lines) > 2 else [lines[0], "scrape_configs: []"]) + "\n"


def _named_alike(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """What is of no job has an empty node and cluster on an agent's page: they are the agent's."""
    return [
        {
            "source_labels": [name], "regex": "", "target_label": name,
            "replacement": labels[name].replace("$", "$$"),
        }
        for name in ("node", "cluster")
    ]  # fmt: skip


def bcrypt(password: str) -> str:
    """As Prometheus wants it, by the C library's crypt(3). Raises OutsideError where that cannot do it."""
    salt = "".join(secrets.choice(_BASE64) for _ in range(21)) + secrets.choice(".Oeu")
    for name in ("libcrypt.so.1", "libcrypt.so.2", None):
        with suppress(OSError, AttributeError):
            function = ctypes.CDLL(name).crypt
            function.restype, function.argtypes = ctypes.c_char_p, (ctypes.c_char_p, ctypes.c_char_p)
            made = function(password.encode(), f"$2b${_COST:02d}${salt}".encode())
            if made and made.startswith(b"$2b$") and len(made) == 60:
                return str(made.decode())
    raise OutsideError(
        "this host's crypt(3) knows no bcrypt, without which Prometheus would be open to all users of the"
        " host; VictoriaMetrics needs none"
    )

"""Configuration of the Prometheus of a session: targets, and the hash of its password."""

from __future__ import annotations

import ctypes
import json
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from joblens.core.errors import OutsideError

_COST = 4  # of bcrypt, the lowest: a password of 256 random bits cannot be guessed
_BASE64 = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_FILLED = ("node", "cluster")  # labels of metrics that belong to no job
_WORD = re.compile(r"[A-Za-z0-9._~+/=:-]+")


class Target(NamedTuple):
    node: str
    cluster: str
    address: str  # HOST:PORT
    token: str


def scrape_config(targets: Iterable[Target], interval: float) -> str:
    """Return prometheus.yml. Each agent has its own token. A JSON string is a YAML string."""
    pace = f"{max(round(interval * 1000), 1)}ms"
    lines = [f"global: {{scrape_interval: {pace}, scrape_timeout: {pace}}}", "scrape_configs:"]
    for target in sorted(targets):
        if not _WORD.fullmatch(target.token):
            raise OutsideError(f"the token of {target.node} has characters that a token cannot have")
        labels = {"node": target.node, "cluster": target.cluster, "instance": target.node, "job": "joblens"}
        lines += [
            f"  - job_name: {json.dumps('joblens ' + target.node)}",
            "    honor_labels: true",
            f"    authorization: {{credentials: {json.dumps(target.token)}}}",
            f"    metric_relabel_configs: {json.dumps([_fill(name, labels[name]) for name in _FILLED])}",
            f"    static_configs: [{json.dumps({'targets': [target.address], 'labels': labels})}]",
        ]
    return "\n".join(lines if len(lines) > 2 else [lines[0], "scrape_configs: []"]) + "\n"


def _fill(name: str, value: str) -> dict[str, str | list[str]]:
    """Return the rule that sets a label where an agent leaves it empty."""
    replacement = value.replace("$", "$$")
    return {"source_labels": [name], "regex": "", "target_label": name, "replacement": replacement}


def bcrypt(password: str) -> str:
    """Hash by the C library's crypt(3). Raises OutsideError if that lacks bcrypt."""
    salt = "".join(secrets.choice(_BASE64) for _ in range(21)) + secrets.choice(".Oeu")
    for name in ("libcrypt.so.1", "libcrypt.so.2", None):
        with suppress(OSError, AttributeError):
            function = ctypes.CDLL(name).crypt
            function.restype, function.argtypes = ctypes.c_char_p, (ctypes.c_char_p, ctypes.c_char_p)
            made = function(password.encode(), f"$2b${_COST:02d}${salt}".encode())
            if made and made.startswith(b"$2b$") and len(made) == 60:
                return str(made.decode())
    raise OutsideError(
        "crypt(3) of this host lacks bcrypt, which Prometheus needs; use --tsdb victoriametrics"
    )

"""The interpreters to measure with: the one that runs the bench, and the distribution's, which nodes have."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple

_DISTRIBUTION = "/usr/bin/python3"


class Interpreter(NamedTuple):
    label: str
    path: str
    version: str


def find_interpreters() -> list[Interpreter]:
    found = [Interpreter("own", sys.executable, sys.version.split()[0])]
    if os.path.exists(_DISTRIBUTION) and os.path.realpath(_DISTRIBUTION) != os.path.realpath(sys.executable):
        ask = [_DISTRIBUTION, "-c", "import sys; print(sys.version.split()[0])"]
        version = subprocess.run(ask, stdout=subprocess.PIPE, check=True, timeout=10).stdout
        found.append(Interpreter("distro", _DISTRIBUTION, version.decode().strip()))
    return found

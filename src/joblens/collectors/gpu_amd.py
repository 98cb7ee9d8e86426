"""GPUs of the vendor amd: not yet read."""

from __future__ import annotations

from typing import Callable

from joblens.collectors.gpu_reading import Reading
from joblens.host import Host


def open_amd(host: Host) -> Callable[[], Reading]:
    raise FileNotFoundError(2, "not there", host.root)

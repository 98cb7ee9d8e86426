"""GPUs of vendors that a test makes up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from joblens.collectors.gpu.reading import Reading
from joblens.core.host import Host

Vendor = tuple[str, Callable[[Host], Callable[[], Reading]]]


def use_vendors(monkeypatch: pytest.MonkeyPatch, *vendors: Vendor) -> None:
    monkeypatch.setattr("joblens.collectors.lazy.may_have_gpus", lambda host: True)
    monkeypatch.setattr("joblens.collectors.gpu.collector._VENDORS", vendors)

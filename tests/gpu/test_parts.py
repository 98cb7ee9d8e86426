"""Parts of reading NVIDIA's cards that need no library."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.collectors.gpu.nvidia import capability, throttling
from joblens.collectors.gpu.nvml import Nvml
from joblens.core.host import Host

# As in NVIDIA's guide to MIG; the major number is given out when the driver is loaded.
DEVICES = "Character devices:\n  1 mem\n195 nvidia\n234 nvidia-caps\n\nBlock devices:\n  8 sd\n"
MINORS = "config 1\nmonitor 2\ngpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\ngpu0/gi7/ci1/access 68\n"


def tree(folder: Path, devices: str, minors: str) -> Host:
    (folder / "proc/driver/nvidia-caps").mkdir(parents=True, exist_ok=True)
    (folder / "proc/devices").write_text(devices)
    (folder / "proc/driver/nvidia-caps/mig-minors").write_text(minors)
    return Host(str(folder))


def test_device_of_an_instance(tmp_path: Path) -> None:
    """The capability file that a job must have for this instance, and no other has."""
    host = tree(tmp_path, DEVICES, MINORS)
    assert capability(host, "gpu0/gi7/ci1/access") == "234:68"
    assert capability(host, "gpu1/gi7/ci1/access") == ""
    assert capability(Host(str(tmp_path / "none")), "gpu0/gi7/ci1/access") == ""


@given(st.sampled_from(["", DEVICES]) | st.text(), st.sampled_from(["", MINORS]) | st.text(), st.data())
def test_device_from_anything(
    tmp_path_factory: pytest.TempPathFactory, devices: str, minors: str, data: st.DataObject
) -> None:
    """Cut off or of another kind: a device or none."""
    devices = devices[: data.draw(st.integers(0, len(devices)))]
    minors = minors[: data.draw(st.integers(0, len(minors)))]
    found = capability(tree(tmp_path_factory.getbasetemp() / "caps", devices, minors), "gpu0/gi7/ci0/access")
    assert found in ("", "234:67", "234:6")


@pytest.mark.parametrize(
    ("reasons", "power", "thermal", "other"),
    [
        (0x0, 0, 0, 0),
        (0x1, 0, 0, 0),  # idle
        (0x4, 1, 0, 0),  # software power cap
        (0x8, 0, 0, 1),  # hardware slowdown without a reason
        (0x8 | 0x80, 1, 0, 0),  # hardware slowdown by the power brake
        (0x8 | 0x40, 0, 1, 0),  # by heat
        (0x20, 0, 1, 0),
        (0x2, 0, 0, 1),  # application clocks
        (0x200 | 0x4, 1, 0, 1),  # board limit, which older headers do not name
    ],
)
def test_why_the_clock_is_low(reasons: int, power: int, thermal: int, other: int) -> None:
    names = ("throttled_power", "throttled_thermal", "throttled_other")
    assert throttling(reasons) == dict(zip(names, (power, thermal, other)))


class Binding:
    """One whose library lacks a function, and that knows how often it was asked for it."""

    class NVMLError(Exception):
        value = 13  # function not found

    asked = 0

    def missing(self, *args: object) -> None:
        self.asked += 1
        raise self.NVMLError


def test_missing_function_is_called_once() -> None:
    """A function that the library or the binding lacks will not come: it is not asked for each time."""
    binding = Binding()
    nvml = Nvml(binding)
    assert [nvml.ask("missing", 1), nvml.ask("missing", 2), nvml.ask("not_even_known")] == [None, None, None]
    assert not nvml.run("missing")
    assert binding.asked == 1

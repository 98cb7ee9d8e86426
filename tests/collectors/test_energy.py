"""Meters of energy: what they count, though they wrap and overlap, and one job's part of it."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.sampler import Sampler
from joblens.analysis.energy import NodeEnergy, node_energy, share
from joblens.collectors.energy.collector import energy
from joblens.collectors.energy.cray import parse_counter
from joblens.collectors.energy.rapl import Counter
from joblens.collectors.energy.reading import SCHEMA
from joblens.collectors.number_files import parse_number
from joblens.core.config import Settings
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT, Key, Rows

NODES = Path(__file__).parents[1] / "nodes"
RAPL = "sys/class/powercap"
CRAY = "sys/cray/pm_counters"
HWMON = "sys/class/hwmon"
SPAN = 262_143_328_850


def plant(root: Path, files: dict[str, str | int]) -> Host:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return Host(str(root))


def zone(folder: str, name: str, value: int, span: int = SPAN) -> dict[str, str | int]:
    top = f"{RAPL}/{folder}"
    return {f"{top}/name": name, f"{top}/energy_uj": value, f"{top}/max_energy_range_uj": span}


def cray(generation: int) -> dict[str, str | int]:
    """Files of one update, each with its timestamp."""
    values: dict[str, str | int] = {f"{CRAY}/freshness": generation}
    for part in ("", "cpu_", "memory_", "accel0_"):
        values[f"{CRAY}/{part}energy"] = f"{generation} J 1700000000000000 us"
        values[f"{CRAY}/{part}power"] = f"{generation} W 1700000000000000 us"
    return values


def read(host: Host) -> Rows:
    (rows,) = energy(host)()
    return rows


def value(rows: Rows, column: str, sensor: str) -> float | None:
    """In base units."""
    at = rows.schema.position(column)
    (number,) = [number for number, key in enumerate(rows.keys) if key[2] == sensor]
    found = rows.row(number)[at]
    return None if found == ABSENT else rows.schema.columns[at].in_base_units(found)


def part_of(rows: Rows) -> dict[str, str]:
    return {str(key[2]): str(key[3]) for key in rows.keys}


def test_rapl_by_hand() -> None:
    """Microjoules are joules, a duplicate of a package is left out, DRAM is not part of its package."""
    rows = read(Host(str(NODES / "energy-rapl")))
    assert value(rows, "energy_joules", "intel-rapl:0") == 120_000_500_000 / 1e6
    assert value(rows, "energy_joules", "intel-rapl:0:1") == 8_000_250_000 / 1e6
    assert value(rows, "power_watts", "hwmon1:power1") == 412_000_000 / 1e6
    assert value(rows, "power_watts", "intel-rapl:0") is None
    assert part_of(rows) == {
        "hwmon1:power1": "",
        "intel-rapl:0": "hwmon1:power1",
        "intel-rapl:1": "hwmon1:power1",
        "intel-rapl:0:0": "intel-rapl:0",
        "intel-rapl:1:0": "intel-rapl:1",
        "intel-rapl:0:1": "hwmon1:power1",
        "intel-rapl:1:1": "hwmon1:power1",
    }


def test_cray_by_hand() -> None:
    """All of a node's parts are parts of it, also the socket that AMD's driver counts."""
    rows = read(Host(str(NODES / "cray")))
    assert value(rows, "energy_joules", "pm_counters:node") == 51_234_567
    assert value(rows, "power_watts", "pm_counters:accel3") == 273
    assert value(rows, "energy_joules", "hwmon0:energy65") == 11_000_000_000_000 / 1e6
    assert set(part_of(rows).values()) == {"", "pm_counters:node"}
    assert "hwmon0:energy1" not in part_of(rows)  # one core of those


def test_nothing_there(tmp_path: Path) -> None:
    """A machine without a meter has nothing to read, which is not a failure."""
    with pytest.raises(FileNotFoundError):
        energy(Host(str(tmp_path)))()


# Wrap-around


def test_wrap_around_is_corrected(tmp_path: Path) -> None:
    """A counter that has wrapped around three times shows what a wider one would."""
    reading = energy(plant(tmp_path, zone("intel-rapl:0", "package-0", SPAN - 1000)))
    shown = [reading()[0].values[1]]
    for raw in (500, SPAN - 10, 20, 30, SPAN - 5, 0):
        (tmp_path / RAPL / "intel-rapl:0/energy_uj").write_text(f"{raw}\n")
        shown.append(reading()[0].values[1])
    assert shown == [
        SPAN - 1000,
        SPAN + 500,
        SPAN + SPAN - 10,
        2 * SPAN + 20,
        2 * SPAN + 30,
        2 * SPAN + SPAN - 5,
        3 * SPAN,
    ]


@given(
    st.integers(1 << 20, 1 << 48),
    st.lists(st.floats(0, 0.5, exclude_max=True), min_size=1, max_size=50),
    st.floats(0, 1, exclude_max=True),
)
def test_what_was_used_is_what_is_counted(span: int, parts: list[float], start: float) -> None:
    """However often it wraps: as long as no reading comes later than half a round, not a joule is lost."""
    counter = Counter(Host("/nonexistent"), "energy_uj", span)
    true = int(start * span)
    before = counter.add(true)
    for part in parts:
        used = int(part * span)
        true += used
        after = counter.add(true % span)
        assert after - before == used
        before = after


def test_reset_is_not_a_wrap_around(tmp_path: Path) -> None:
    """Resetting the counter, or resuming the machine, does not count as a wrap-around."""
    reading = energy(plant(tmp_path, zone("intel-rapl:0", "package-0", SPAN // 4)))
    reading()
    (tmp_path / RAPL / "intel-rapl:0/energy_uj").write_text("7\n")
    assert reading()[0].values[1] == 7


def test_without_a_range_the_counter_is_raw() -> None:
    """If the kernel does not report the range, nothing is added."""
    counter = Counter(Host("/nonexistent"), "energy_uj", ABSENT)
    assert [counter.add(raw) for raw in (5, 9, 2, ABSENT, 3)] == [5, 9, 2, ABSENT, 3]


def test_another_device_does_not_disturb(tmp_path: Path) -> None:
    """Rounds are remembered while something else is plugged in; keys change only then."""
    reading = energy(plant(tmp_path, zone("intel-rapl:0", "package-0", SPAN - 1)))
    first = reading()[0]
    plant(tmp_path, zone("intel-rapl:0", "package-0", 1))
    second = reading()[0]
    assert second.keys is first.keys
    assert second.schema is first.schema
    plant(tmp_path, {f"{HWMON}/hwmon0/name": "power_meter", f"{HWMON}/hwmon0/power1_average": 5_000_000})
    third = reading()[0]
    assert value(third, "energy_joules", "intel-rapl:0") == (SPAN + 1) / 1e6
    assert value(third, "power_watts", "hwmon0:power1") == 5


def test_a_zone_goes_away(tmp_path: Path) -> None:
    """A package that is switched off is gone at the next reading, and the other one stays."""
    reading = energy(
        plant(tmp_path, {**zone("intel-rapl:0", "package-0", 1), **zone("intel-rapl:1", "package-1", 2)})
    )
    assert len(reading()[0].keys) == 2
    for path in (tmp_path / RAPL / "intel-rapl:1").iterdir():
        path.unlink()
    (tmp_path / RAPL / "intel-rapl:1").rmdir()
    assert [key[2] for key in reading()[0].keys] == ["intel-rapl:0"]


# What is read


class OthersHost(Host):
    """As an ordinary user sees it since Linux 5.10."""

    def read(self, path: str) -> bytes:
        if path.endswith(("energy_uj", "energy65_input")):
            raise PermissionError(13, "Permission denied", path)
        return super().read(path)


@pytest.mark.parametrize(("node", "column"), [("energy-rapl", "energy_joules"), ("cray", "power_watts")])
def test_only_root_may_read(node: str, column: str) -> None:
    """Unreadable values are absent and marked as unreadable; no reading fails."""
    log: list[str] = []
    sampler = Sampler(OthersHost(str(NODES / node)), Settings(), log.append)
    for tick in range(3):
        sampler.sample(tick)
    rows = sampler.latest["energy"].rows
    hidden = [number for number in range(len(rows.keys)) if rows.row(number)[0] == 0]
    assert {rows.keys[number][0] for number in hidden} == {
        {"energy-rapl": "rapl", "cray": "amd_energy"}[node]
    }
    assert all(rows.row(number) == [0, ABSENT, ABSENT] for number in hidden)
    assert log == []
    assert [it.failures for it in sampler.running if it.collector.name == "energy"] == [0]


def test_mmio_alone(tmp_path: Path) -> None:
    """Where the package has only the second view, that is taken."""
    files = {
        **zone("intel-rapl-mmio:0", "package-0", 5_000_000),
        **zone("intel-rapl-mmio:0:0", "dram", 1_000_000),
    }
    rows = read(plant(tmp_path, files))
    assert part_of(rows) == {"intel-rapl-mmio:0": "", "intel-rapl-mmio:0:0": ""}
    assert node_energy(rows).rows == (0, 1)


def test_two_drivers_for_one_package(tmp_path: Path) -> None:
    """A package that two drivers expose counts once."""
    files = {
        **zone("intel-rapl:0", "package-0-die-0", 5),
        **zone("intel-rapl:1", "package-0-die-1", 6),
        **zone("intel-rapl:10", "package-0-die-0", 5),
        **zone("intel-rapl:0:0", "dram", 1),
        **zone("intel-rapl:1:0", "dram", 2),
    }
    rows = read(plant(tmp_path, files))
    assert list(part_of(rows)) == ["intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0", "intel-rapl:1:0"]
    assert {key[1] for key in rows.keys} == {"package", "dram"}


def test_amd_not_twice(tmp_path: Path) -> None:
    """AMD's own driver and RAPL read the same register."""
    files: dict[str, str | int] = {
        f"{HWMON}/hwmon0/name": "amd_energy",
        f"{HWMON}/hwmon0/energy9_input": 900,
        f"{HWMON}/hwmon0/energy9_label": "Esocket0",
    }
    assert [key[0] for key in read(plant(tmp_path / "alone", files)).keys] == ["amd_energy"]
    both = {**files, **zone("intel-rapl:0", "package-0", 5)}
    assert [key[0] for key in read(plant(tmp_path / "both", both)).keys] == ["rapl"]


def test_several_meters_are_not_the_node(tmp_path: Path) -> None:
    """Two ACPI meters may be two supplies or one behind the other: none is taken for the node."""
    files: dict[str, str | int] = {}
    for number in range(2):
        files[f"{HWMON}/hwmon{number}/name"] = "power_meter"
        files[f"{HWMON}/hwmon{number}/power1_average"] = 100_000_000
    rows = read(plant(tmp_path, files))
    assert [key[1] for key in rows.keys] == ["meter", "meter"]
    assert node_energy(rows, "power_watts") == NodeEnergy((), "", False)


@pytest.mark.parametrize("named", ["name", "device/name"])
def test_meters_of_older_kernels(tmp_path: Path, named: str) -> None:
    """There the files of a meter are in its device's folder, at times its name too."""
    files: dict[str, str | int] = {
        f"{HWMON}/hwmon3/{named}": "power_meter",
        f"{HWMON}/hwmon3/device/power1_average": 77_000_000,
    }
    rows = read(plant(tmp_path, files))
    assert rows.keys == (("acpi", "node", "hwmon3:power1", ""),)
    assert value(rows, "power_watts", "hwmon3:power1") == 77


def grace(number: int, label: str, watts: int) -> dict[str, str | int]:
    top = f"{HWMON}/hwmon{number}"
    return {
        f"{top}/device/name": "power_meter",
        f"{top}/device/power1_oem_info": label,
        f"{top}/device/power1_average": watts * 1_000_000,
    }


def test_grace_hopper(tmp_path: Path) -> None:
    """A module has processor and GPU in it, a processor its cores: of eight meters two can be added."""
    files: dict[str, str | int] = {}
    for socket in range(2):
        for number, kind in enumerate(("Module", "Grace", "CPU", "SysIO")):
            files.update(grace(4 * socket + number, f"{kind} Power Socket {socket}", 1000 >> number))
    rows = read(plant(tmp_path, files))
    above = [name.removesuffix(":power1") for name in part_of(rows).values()]
    assert above == ["", "hwmon0", "hwmon1", "hwmon1", "", "hwmon4", "hwmon5", "hwmon5"]
    assert node_energy(rows, "power_watts") == NodeEnergy((0, 4), "module", True)
    assert node_energy(rows).rows == ()


def test_grace_alone(tmp_path: Path) -> None:
    """Without a GPU there is no module meter, and a single labelled meter is not the node's."""
    rows = read(plant(tmp_path, grace(0, "Grace Power Socket 0", 200)))
    assert rows.keys == (("acpi", "package", "hwmon0:power1", ""),)
    assert node_energy(rows, "power_watts") == NodeEnergy((0,), "CPU", False)


class RenewedHost(Host):
    """A host whose meters are updated while they are read, a given number of times."""

    def __init__(self, root: Path, times: int) -> None:
        super().__init__(str(root))
        self.top, self.times, self.generation = root, times, 1

    def read(self, path: str) -> bytes:
        if path.endswith("cpu_energy") and self.times:
            self.times -= 1
            self.generation += 1
            plant(self.top, cray(self.generation))
        return super().read(path)


def test_freshness_changes_in_mid_read(tmp_path: Path) -> None:
    """All numbers are those of one moment, the later one, though the first were read before it."""
    plant(tmp_path, cray(1))
    rows = read(RenewedHost(tmp_path, times=1))
    assert {value(rows, "energy_joules", str(key[2])) for key in rows.keys} == {2}
    assert {value(rows, "power_watts", str(key[2])) for key in rows.keys} == {2}


def test_files_updated_at_every_reading(tmp_path: Path) -> None:
    """On a machine that is too slow, the last reading is used after a few attempts."""
    plant(tmp_path, cray(1))
    rows = read(RenewedHost(tmp_path, times=1000))
    assert {value(rows, "energy_joules", str(key[2])) for key in rows.keys} == {3, 4}


def test_cray_without_some_files(tmp_path: Path) -> None:
    """Older blades have no figures of parts, others several of a kind below a common one."""
    files: dict[str, str | int] = {
        f"{CRAY}/energy": "10 J 5 us",
        f"{CRAY}/cpu_power": "3 W 5 us",
        f"{CRAY}/cpu0_power": "2 W 5 us",
        f"{CRAY}/power_cap": "0 W 5 us",
        f"{CRAY}/accel0_power_cap": "0 W 5 us",
    }
    rows = read(plant(tmp_path, files))
    assert part_of(rows) == {
        "pm_counters:node": "",
        "pm_counters:cpu": "pm_counters:node",
        "pm_counters:cpu0": "pm_counters:cpu",
    }
    assert value(rows, "power_watts", "pm_counters:node") is None
    assert value(rows, "power_watts", "pm_counters:cpu0") == 2


# What may be added


def made(*sensors: tuple[str, str, str, str, int]) -> Rows:
    """Rows of (source, domain, sensor, part_of, microjoules)."""
    keys: tuple[Key, ...] = tuple(sensor[:4] for sensor in sensors)
    return Rows(SCHEMA, keys, [number for sensor in sensors for number in (1, sensor[4], ABSENT)])


def test_node_energy_by_hand() -> None:
    """A meter of the node, else of the platform, else packages and memory; cores never."""
    rapl, node = read(Host(str(NODES / "energy-rapl"))), read(Host(str(NODES / "cray")))
    chosen = node_energy(rapl)
    assert [rapl.keys[number][2] for number in chosen.rows] == [
        "intel-rapl:0",
        "intel-rapl:1",
        "intel-rapl:0:1",
        "intel-rapl:1:1",
    ]
    total = sum(rapl.row(number)[1] for number in chosen.rows) / 1e6
    assert total == 120_000.5 + 100_000 + 8_000.25 + 7_000
    assert (chosen.covers, chosen.accelerators) == ("CPU and memory", False)
    assert node_energy(rapl, "power_watts") == NodeEnergy((0,), "node", True)
    assert node_energy(node) == NodeEnergy((0,), "node", True)


def test_platform_before_packages(tmp_path: Path) -> None:
    """psys has packages and memory in it, and what other packages call psys-1 again."""
    files = {
        **zone("intel-rapl:0", "package-0", 5),
        **zone("intel-rapl:0:0", "core", 3),
        **zone("intel-rapl:0:1", "dram", 2),
        **zone("intel-rapl:1", "psys", 9),
        **zone("intel-rapl:2", "psys-1", 9),
    }
    rows = read(plant(tmp_path, files))
    chosen = node_energy(rows)
    assert [rows.keys[number][2] for number in chosen.rows] == ["intel-rapl:1"]
    assert (chosen.covers, chosen.accelerators) == ("platform", True)


def test_a_whole_that_is_unknown_does_not_hide_its_parts() -> None:
    """If the platform's counter cannot be read, packages are added; cores are still in theirs."""
    rows = made(
        ("rapl", "platform", "psys", "", ABSENT),
        ("rapl", "package", "p0", "psys", 5),
        ("rapl", "package", "p1", "psys", 6),
        ("rapl", "core", "c0", "p0", 3),
        ("rapl", "dram", "d1", "p1", 1),  # of a source that counts it so
    )
    assert node_energy(rows) == NodeEnergy((1, 2), "CPU", False)


def test_two_sources_of_the_same() -> None:
    """Two ways to count processors are not added, though neither says that the other is in it."""
    rows = made(("cray", "cpu", "cpu", "", 7), ("rapl", "package", "p0", "", 7))
    assert node_energy(rows) == NodeEnergy((0,), "CPU", False)


DOMAINS = ("platform", "module", "package", "core", "dram", "cpu", "memory", "accelerator", "meter")


@given(
    st.lists(st.tuples(st.sampled_from(DOMAINS), st.integers(-1, 30), st.integers(0, 1000), st.booleans()))
)
def test_never_added_twice(plan: list[tuple[str, int, int, bool]]) -> None:
    """Any tree of sensors, each with its parts' energy in its own: the sum is never more than was used."""
    above = [part if part < number else -1 for number, (_, part, _, _) in enumerate(plan)]
    inside = [own for _, _, own, _ in plan]
    for number in reversed(range(len(plan))):
        if above[number] >= 0:
            inside[above[number]] += inside[number]
    names = [f"s{number}" for number in range(len(plan))]
    rows = made(
        *(
            ("rapl", domain, names[number], names[above[number]] if above[number] >= 0 else "", energy_or_not)
            for number, (domain, _, _, known) in enumerate(plan)
            for energy_or_not in [inside[number] if known else ABSENT]
        )
    )
    chosen = node_energy(rows).rows
    assert sum(rows.row(number)[1] for number in chosen) <= sum(own for _, _, own, _ in plan)
    assert len(set(chosen)) == len(chosen)


def test_a_ring_of_parts_ends() -> None:
    """Nothing hangs on labels that make no sense."""
    rows = made(("x", "package", "a", "b", 1), ("x", "package", "b", "a", 1), ("x", "package", "c", "c", 1))
    assert node_energy(rows).rows == ()


# One job's part


def test_share_by_hand() -> None:
    """Alone: all. Together: by busy core time, accelerators to who held them."""
    alone = share(1000, 3, 40, exclusive=True)
    assert alone is not None
    assert alone.joules == 1000
    shared = share(1000, 30, 40, covers="CPU")
    assert shared is not None
    assert shared == (750, "the CPU's energy by share of busy core time")
    gpus = share(1000, 10, 40, accelerator_joules=600, job_accelerator_joules=500)
    assert gpus is not None
    assert gpus.joules == 500 + 400 * 0.25
    assert gpus.how.startswith("that of the job's own accelerators, ")


def test_share_without_cpu_time() -> None:
    """Without CPU time of any job the result is None, unless the job held accelerators."""
    assert share(1000, 0, 0) is None
    held = share(1000, 0, 0, accelerator_joules=300, job_accelerator_joules=200)
    assert held == (200, "that of the job's own accelerators")


JOBS = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=8)


@given(JOBS, st.floats(0, 1e9), st.floats(0, 1e6))
def test_shares_are_never_more_than_all(jobs: list[tuple[float, float]], rest: float, others: float) -> None:
    """All jobs together get at most what the node used, and none less than nothing."""
    busy = math.fsum(seconds for seconds, _ in jobs) + others
    cards = math.fsum(card for _, card in jobs)
    node = rest + cards
    given_out = 0.0
    for seconds, card in jobs:
        found = share(node, seconds, busy, job_accelerator_joules=card, accelerator_joules=cards)
        if found is not None:
            assert found.joules >= 0
            assert found.how
            given_out += found.joules
    assert given_out <= node * (1 + 1e-9) + 1e-6


# Whatever the files hold

GARBAGE = st.one_of(
    st.binary(max_size=60),
    st.from_regex(rb"-?[0-9]{0,25}( [JWK])?( [0-9]{0,20} us)?\n?", fullmatch=True),
)


@given(GARBAGE)
def test_parsers(data: bytes) -> None:
    """A number, absent, or malformed; nothing else."""
    parsers: list[Callable[[], int]] = [
        lambda: parse_number("path", data),
        lambda: parse_counter("path", data, b"J"),
    ]
    for parse in parsers:
        with contextlib.suppress(MalformedError):
            assert ABSENT <= parse() < 1 << 63


FILES = sorted(
    list(cray(1))
    + [f"{RAPL}/intel-rapl:0/{name}" for name in ("name", "energy_uj", "max_energy_range_uj")]
    + [f"{HWMON}/hwmon0/{name}" for name in ("name", "power1_average", "energy1_input", "energy1_label")]
)


@given(st.dictionaries(st.sampled_from(FILES), GARBAGE), st.dictionaries(st.sampled_from(FILES), GARBAGE))
def test_damaged_files(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Rows that fit their schema, nothing there, or malformed; also when it comes between two readings."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        host = plant(root, {**cray(1), **zone("intel-rapl:0", "package-0", 1)})
        reading = energy(host)
        for changes in (before, after):
            for name, data in changes.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            try:
                (rows,) = reading()
            except MalformedError:
                continue
            assert len(rows.values) == len(rows.keys) * len(SCHEMA.columns)
            assert len(set(rows.keys)) == len(rows.keys)
            assert all(type(number) is int and ABSENT <= number < 1 << 63 for number in rows.values)
            node_energy(rows)
        host.close()

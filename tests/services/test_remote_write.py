"""A real Prometheus and a real VictoriaMetrics take what the hub writes, and have what the lake has."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hub.made import Running, encode, node_samples, write_segment
from joblens.agent.sampler import Sampler
from joblens.config import AttributionSettings, Settings
from joblens.host import Host
from joblens.hub.segments import Segment
from joblens.hub.sink import Taken
from joblens.hub.sinks.lake import LakeSink
from joblens.hub.sinks.remote_write import RemoteWriteSink, Server
from joblens.model import Sample
from joblens.store.home import find_home, make_home
from joblens.store.lake import Lake
from waiting import wait_for

from .conftest import need
from .running import fetch, free_port

Series = dict[tuple[tuple[str, str], ...], list[tuple[int, float]]]
Ask = Callable[[], Series]


@contextmanager
def running(command: list[str], log: Path, ready: str) -> Iterator[None]:
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        wait_for(command[0], lambda: _is_ready(ready))
        yield
    finally:
        process.terminate()
        process.wait()


def _is_ready(url: str) -> bool:
    try:
        return fetch(url).status == 200
    except OSError:
        return False


@contextmanager
def prometheus(folder: Path) -> Iterator[tuple[str, Ask]]:
    need("prometheus")
    (folder / "prometheus.yml").write_text("{}")
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--web.enable-remote-write-receiver",
    ]

    def ask() -> Series:
        query = urllib.parse.urlencode({"query": '{__name__=~"joblens_.*"}[1h]', "time": time.time() + 60})
        answer = json.loads(fetch(f"{url}/api/v1/query?{query}").text)["data"]["result"]
        return {
            tuple(sorted(it["metric"].items())): [(round(t * 1000), float(v)) for t, v in it["values"]]
            for it in answer
        }

    with running(command, folder / "log", f"{url}/-/ready"):
        yield f"{url}/api/v1/write", ask


@contextmanager
def victoria(folder: Path) -> Iterator[tuple[str, Ask]]:
    need("victoria-metrics")
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        "victoria-metrics",
        f"-storageDataPath={folder}/data",
        f"-httpListenAddr={url.removeprefix('http://')}",
        "-retentionPeriod=12",
        "-search.latencyOffset=0s",
    ]

    def ask() -> Series:
        fetch(f"{url}/internal/force_flush")
        page = fetch(
            f"{url}/api/v1/export?" + urllib.parse.urlencode({"match[]": '{__name__=~"joblens_.*"}'})
        )
        found = map(json.loads, page.text.splitlines())
        return {
            tuple(sorted(it["metric"].items())): list(zip(it["timestamps"], map(float, it["values"])))
            for it in found
        }

    with running(command, folder / "log", f"{url}/health"):
        yield f"{url}/api/v1/write", ask


SERVERS = {"prometheus": prometheus, "victoria-metrics": victoria}


def sampled(ticks: int) -> list[Sample]:
    """What an agent sees of this machine, some times."""
    settings = Settings(cluster="lab", node="here", attribution=AttributionSettings(infer=False))
    sampler = Sampler(Host("/"), settings, lambda _: None)
    found: list[Sample] = []
    for tick in range(ticks):
        found += sampler.sample(tick)
        time.sleep(0.05)
    sampler.close()
    return found


def segments(folder: Path) -> list[Segment]:
    """Of this machine, and of two nodes with two jobs and unlike numbers of cores."""
    jobs = [Running("17", "alice", 1000), Running("18", "bob", 1001)]
    now = int(time.time()) * 10**9 - 40 * 10**9
    made = []
    for number in (1, 2):
        batches = [encode("here", number, sampled(4))]
        for node, cores in (("n1", 2), ("n2", 5)):
            times = [now + (number * 10 + tick) * 10**9 for tick in range(10)]
            batches.append(encode(node, number, node_samples(node, times, jobs, cores), jobs))
        made.append(write_segment(folder, number, batches))
    return made


def of_lake(lake: Lake, skip: frozenset[str]) -> Series:
    """As series: what the names of these are is told by the columns."""
    found: Series = {}
    for folder in sorted(lake.path.glob("set=*")):
        set_name = folder.name.removeprefix("set=")
        files = lake.files(set_name)
        types = lake.schema(files)
        if set_name in skip:
            continue
        numbers = [name for name, kind in types.items() if kind != "VARCHAR" and name != "time"]
        labels = [name for name, kind in types.items() if kind == "VARCHAR"]
        query = ", ".join(f'"{name}"' for name in (*labels, *numbers))
        wanted = (
            {"time": "TIMESTAMP_NS"} | dict.fromkeys(labels, "VARCHAR") | dict.fromkeys(numbers, "DOUBLE")
        )
        rows = lake.query(
            files, wanted, f"SELECT epoch_ns(time) // 1000000, {query} FROM {{lake}} ORDER BY time"
        )
        for at, *cells in rows:
            whose = tuple((name, text) for name, text in zip(labels, cells) if text)
            for name, value in zip(numbers, cells[len(labels) :]):
                if value is not None:
                    key = tuple(sorted((("__name__", f"{set_name}_{name}"), *whose)))
                    found.setdefault(key, []).append((at, value))
    return found


def as_the_lake_names_it(series: Series, instances: set[str]) -> Series:
    """Without what remote write adds, and which the lake has not or has under another name."""
    found: Series = {}
    for labels, samples in series.items():
        named = dict(labels)
        assert named.pop("job") == "joblens"
        assert named.pop("instance") in instances
        name = named["__name__"].removeprefix("joblens_")
        found[tuple(sorted((named | {"__name__": name}).items()))] = samples
    return found


@pytest.mark.parametrize("name", SERVERS)
def test_values_are_the_lakes(name: str, tmp_path: Path) -> None:
    """Every sample of every series, and no other; what is sent again changes nothing."""
    skip = frozenset(("process", "thread", "process_pss", "gpu_process", "cgroup"))
    made = segments(tmp_path / "journal")
    lake = LakeSink("h1", make_home(find_home(tmp_path / "store")))
    for segment in made:
        lake.take(segment)
    (tmp_path / "server").mkdir()
    with SERVERS[name](tmp_path / "server") as (url, ask):
        sink = RemoteWriteSink(Server(url), tmp_path / "sent", skip)
        taken = Taken()
        for segment in made:
            taken = taken.plus(sink.take(segment))
        assert (taken.dropped, taken.problems) == (0, ())
        stored = wait_for("all samples", lambda: _complete(ask(), taken.values))
        (tmp_path / "sent").unlink()
        sink.take(made[-1])  # as after a power failure
        sink.recover(0)
        again = ask()
        if name == "prometheus":
            assert again == stored
        else:  # keeps both of two equal samples until asked not to
            assert {key: sorted(set(it)) for key, it in again.items()} == stored
    wanted = of_lake(lake.lake, skip)
    found = as_the_lake_names_it(stored, {"here", "n1", "n2"})
    assert sum(map(len, found.values())) == taken.values
    compared = 0
    for labels, samples in found.items():
        named = dict(labels)
        # The lake's columns have no `_total`, and one without a name is `value` there.
        bare = named["__name__"].removesuffix("_total")
        names = [it for it in (bare, f"{bare}_value", named["__name__"]) if _key(named, it) in wanted]
        assert len(names) >= 1, labels
        expected = wanted[_key(named, names[0])]
        assert [at for at, _ in samples] == [at for at, _ in expected], labels
        assert [value for _, value in samples] == pytest.approx([value for _, value in expected], rel=1e-12)
        compared += len(samples)
    assert compared == taken.values
    assert len(found) == len(wanted)


def _key(named: dict[str, str], name: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((named | {"__name__": name}).items()))


def _complete(found: Series, samples: int) -> Series | None:
    return found if sum(map(len, found.values())) == samples else None

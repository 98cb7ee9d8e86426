"""A real Prometheus and a real VictoriaMetrics take what the hub writes, and have what the lake has."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hub.made import Running, encode, node_samples, shared_nodes, write_segment
from hub.series import Series, assert_equal, labels_of, make_labels, of_lake
from joblens.agent.sampler import Sampler
from joblens.core.config import CollectorSettings, Settings
from joblens.core.host import Host
from joblens.core.model import Sample
from joblens.hub.segments import Segment
from joblens.hub.sink import Taken
from joblens.hub.sinks.lake import LakeSink
from joblens.hub.sinks.remote_write import RemoteWriteSink, Server
from joblens.store.home import find_home, make_home
from programs import need
from waiting import wait_for

from .running import fetch, free_port

Ask = Callable[[], Series]
NODES = ("here", "n1", "n2")


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
    """This machine as an agent samples it, but for processes: those of other tests are other jobs'."""
    off = dict.fromkeys(("processes", "cgroups"), CollectorSettings(enabled=False))
    settings = Settings(cluster="lab", node="here", collectors=off)
    sampler = Sampler(Host("/"), settings, lambda _: None)
    found: list[Sample] = []
    for tick in range(ticks):
        found += sampler.sample(tick)
        time.sleep(0.05)
    sampler.close()
    return found


def segments(folder: Path) -> tuple[list[Segment], list[Sample]]:
    """Of this machine, and of two nodes with two jobs and unlike numbers of cores; and what is in them."""
    jobs = [Running("17", "alice", 1000), Running("18", "bob", 1001)]
    now = int(time.time()) * 10**9 - 40 * 10**9
    made, samples = [], []
    for number in (1, 2):
        here = sampled(4)
        samples += here
        batches = [encode("here", number, here)]
        for node, cores in (("n1", 2), ("n2", 5)):
            times = [now + (number * 10 + tick) * 10**9 for tick in range(10)]
            of_node = node_samples(node, times, jobs, cores)
            samples += of_node
            batches.append(encode(node, number, of_node, jobs))
        made.append(write_segment(folder, number, batches, time.time_ns()))
    return made, samples


def as_the_lake_names_it(found: Series, wanted: Series) -> Series:
    """Without what remote write adds. The lake has no `_total`, and calls `value` what has no name."""
    renamed: Series = {}
    for labels, samples in found.items():
        named = dict(labels)
        assert named.pop("job") == "joblens"
        assert named.pop("instance") in NODES
        assert named["node"] in NODES
        assert named["cluster"] == "lab"
        name = named["__name__"].removeprefix("joblens_")
        bare = name.removesuffix("_total")
        known = [it for it in (bare, f"{bare}_value", name) if make_labels(it, named) in wanted]
        assert known, labels
        assert make_labels(known[0], named) not in renamed
        renamed[make_labels(known[0], named)] = samples
    return renamed


@pytest.mark.parametrize("name", SERVERS)
def test_values_are_the_lakes(name: str, tmp_path: Path) -> None:
    """Every sample of every series, and no other; what is sent again changes nothing."""
    made, samples = segments(tmp_path / "journal")
    lake = LakeSink("h1", make_home(find_home(tmp_path / "store")))
    for segment in made:
        lake.take(segment)
    (tmp_path / "server").mkdir()
    with SERVERS[name](tmp_path / "server") as (url, ask):
        sink = RemoteWriteSink(Server(url), tmp_path / "sent")
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
    wanted = of_lake(lake.lake, labels_of(samples))
    assert_equal(as_the_lake_names_it(stored, wanted), wanted)


@pytest.mark.parametrize("name", SERVERS)
def test_jobs_users_and_nodes_are_kept_apart(name: str, tmp_path: Path) -> None:
    """Every value is under its own cluster, node and job, as in the lake; also where columns are others."""
    now = int(time.time())
    nodes = shared_nodes([(now - 20 + tick) * 10**9 for tick in range(10)])
    batches = [encode(node, 1, *made) for node, made in nodes.items()]
    segment = write_segment(tmp_path / "journal", 1, batches, time.time_ns())
    lake = LakeSink("h1", make_home(find_home(tmp_path / "store")))
    lake.take(segment)
    (tmp_path / "server").mkdir()
    with SERVERS[name](tmp_path / "server") as (url, ask):
        sink = RemoteWriteSink(Server(url), tmp_path / "sent")
        taken = sink.take(segment)
        sink.recover(1)
        stored = wait_for("all samples", lambda: _complete(ask(), taken.values))
    wanted = of_lake(lake.lake, labels_of(it for samples, _ in nodes.values() for it in samples))
    assert_equal(as_the_lake_names_it(stored, wanted), wanted)
    jobs = Counter((of["node"], of["jobid"]) for of in labels_named(stored, "joblens_job_processes"))
    assert jobs == {("n1", "17"): 1, ("n1", "18"): 1, ("n1", "19"): 1, ("n2", "17"): 1}
    processes = labels_named(stored, "joblens_process_threads")
    assert Counter((of["node"], of.get("jobid", ""), of["pid"]) for of in processes) == {
        ("n1", "17", "100"): 1, ("n1", "18", "101"): 1, ("n1", "19", "102"): 1, ("n1", "", "99"): 1,
        ("n2", "17", "100"): 1, ("n2", "", "99"): 1,
    }  # fmt: skip
    cores = Counter(of["node"] for of in labels_named(stored, "joblens_cpu_switches_total"))
    assert cores == {"n1": 2, "n2": 5}
    assert [of["node"] for of in labels_named(stored, "joblens_load_queued_total")] == ["n2"]
    assert [of["node"] for of in labels_named(stored, "joblens_load_free_bytes")] == ["n1"]


def labels_named(found: Series, name: str) -> list[dict[str, str]]:
    return [dict(labels) for labels in found if ("__name__", name) in labels]


def _complete(found: Series, samples: int) -> Series:
    """All, or nothing yet."""
    return found if sum(map(len, found.values())) == samples else {}

"""Reports of jobs from servers that are not ours, and of what others have put there."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.made import encode, write_segment
from joblens.attribution.account import INFO, JOB
from joblens.collectors.load import SCHEMA as LOAD
from joblens.core.config import UsermodeSettings
from joblens.core.errors import JoblensError
from joblens.core.model import ABSENT, Key, Rows, Sample
from joblens.hub.sinks.remote_write import RemoteWriteSink
from joblens.hub.sinks.remote_write import Server as Writer
from joblens.hub.sinks.write_request import Series, _label
from joblens.hub.sinks.write_request import encode as encode_series
from joblens.jobs.from_tsdb import JobInputs, inputs_from_series, summarise_from_server
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.store.reader import Span
from joblens.store.tsdb.exporters import ExporterReader
from joblens.store.tsdb.promql import Server
from joblens.usermode.local_server import PROMETHEUS, VICTORIAMETRICS, LocalServer, settings_of, write_url
from joblens.usermode.state import Server as Running
from joblens.wire.snappy import compress
from joblens.wire.varint import varint
from plain_records import end_from, facts_from
from programs import need
from waiting import wait_for

from .running import fetch, free_port, running_prometheus

PROGRAMS = {PROMETHEUS: "prometheus", VICTORIAMETRICS: "victoria-metrics"}
SECONDS = 60
NODES = ("c1", "c2")


@contextmanager
def started(kind: str, folder: Path) -> Iterator[Running]:
    need(PROGRAMS[kind])
    found = LocalServer(kind, folder, UsermodeSettings())
    try:
        yield found.start()
    finally:
        found.stop()


def job_samples(node: str, start: float) -> Iterator[Sample]:
    """Two cores busy on each."""
    jobs: tuple[Key, ...] = (("lab", "4242", node),)
    info: tuple[Key, ...] = (("lab", "4242", node, "userA", 1000, "slurm", "cgroup", "cgroup", "cgroup"),)
    for second in range(SECONDS):
        at = round((start + second) * 1e9)
        known = {"cpu_seconds": second * 2_000_000, "memory_bytes": 10**9, "processes": 1, "threads": 2}
        yield Sample(at, Rows(JOB, jobs, [known.get(it.name, ABSENT) for it in JOB.columns]))
        yield Sample(at, Rows(INFO, info, [1]))
        yield Sample(at, Rows(LOAD, ((),), [second] * len(LOAD.columns)))


def write_job(found: Running, folder: Path) -> float:
    start = time.time() // 1 - SECONDS - 30.0
    batches = [encode(node, 1, job_samples(node, start)) for node in NODES]
    segment = write_segment(folder / "journal", 1, batches, time.time_ns())
    settings = settings_of(found)
    sink = RemoteWriteSink(Writer(write_url(settings), settings.token_file), folder / "sent")
    assert not sink.take(segment).dropped
    sink.recover(1)
    server = Server(found.url, found.token_file)
    wait_for("its last sample", lambda: server.instant('joblens_job_info{jobid="4242"}', start + SECONDS - 1))
    server.close()
    return start


def run_job(home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "JOBLENS_HOME": str(home), "HOME": str(home), **more}
    return subprocess.run(
        [sys.executable, "-m", "joblens", "job", *words],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_job_of_which_only_series_are_known(kind: str, tmp_path: Path) -> None:
    """From the server while it runs, from its folder afterwards, and by the server that the settings name."""
    home = tmp_path / "home"
    home.mkdir(0o700)
    with started(kind, tmp_path / "servers") as found:
        start = write_job(found, tmp_path)
        config = home / "joblens.toml"
        config.write_text(f'[tsdb]\nurl = "{found.url}"\ntoken_file = "{found.token_file}"\n')
        for words in (["--store", found.url], ["--store", "tsdb"], []):
            done = run_job(home, "4242", "--json", *words, JOBLENS_CONFIG=str(config))
            assert done.returncode == 0, done.stderr
            check_job(json.loads(done.stdout), start)
        cut = run_job(
            home, "4242@lab", "--store", "tsdb", "--from", "+10", "--to", "+20", JOBLENS_CONFIG=str(config)
        )
        assert "2.0" in cut.stdout
        unknown = run_job(home, "4243", "--store", "tsdb", JOBLENS_CONFIG=str(config))
        assert unknown.returncode == 1
        assert "has no job '4243' of the last 30 days" in unknown.stderr
    done = run_job(home, "4242", "--json", "--store", found.data)
    assert done.returncode == 0, done.stderr
    check_job(json.loads(done.stdout), start)
    nothing = run_job(home, "4242", "--store", str(home))
    assert "is not a data folder of Prometheus or VictoriaMetrics" in nothing.stderr


def check_job(record: dict[str, Any], start: float) -> None:
    job = record["job"]
    assert (job["id"], job["cluster"], job["user"], job["uid"]) == ("4242", "lab", "userA", 1000)
    assert job["nodes"] == list(NODES)
    assert abs(job["start"] - start) < 0.01
    assert abs(job["end"] - (start + SECONDS - 1)) < 0.01
    assert record["used"]["cores_mean"] == pytest.approx(4.0, rel=0.05)
    assert record["used"]["memory_peak_bytes"] == 2 * 10**9
    assert not record["gaps"]


def test_node_exporter(tmp_path: Path) -> None:
    """A real one that a real Prometheus scrapes: what the node did while a job ran."""
    need("prometheus")
    need("prometheus-node-exporter")
    address = f"127.0.0.1:{free_port()}"
    config = f"""
scrape_configs:
  - job_name: node
    scrape_interval: 1s
    static_configs: [{{targets: ["{address}"]}}]
    relabel_configs:
      - {{target_label: instance, replacement: "c1.example.org:9100"}}
"""
    command = ["prometheus-node-exporter", f"--web.listen-address={address}", "--log.level=error"]
    with (tmp_path / "log").open("w") as log:
        exporter = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for("node_exporter", lambda: is_there(f"http://{address}/metrics"))
        with running_prometheus(tmp_path / "prometheus", config=config) as prometheus:
            looks = 'count_over_time(node_load1{instance="c1.example.org:9100"}[1h]) >= 8'
            prometheus.wait_for(looks)
            server = Server(prometheus.address)
            check_node(server)
            server.close()
    finally:
        exporter.terminate()
        exporter.wait()


def is_there(url: str) -> bool:
    try:
        return fetch(url).status == 200
    except OSError:
        return False


def check_node(server: Server) -> None:
    (first,) = server.instant("min_over_time(timestamp(node_load1)[1h:1s])", time.time())
    (last,) = server.instant("timestamp(node_load1)", time.time())
    start, end = first.values[0], last.values[0]
    reader = ExporterReader(server, ["c1"])
    span = Span("17", start, end)
    cores = os.sysconf("SC_NPROCESSORS_ONLN")
    states = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    (series,) = reader.split(
        span._replace(nodes=("c1",)), "cpu", ("node", "cpu"), [f"{it}_seconds" for it in states], 1000
    ).values()
    passed = sum(
        (series.last[f"{it}_seconds"][-1] or 0) - (series.last[f"{it}_seconds"][0] or 0) for it in states
    )
    assert passed == pytest.approx(cores * (series.times[-1] - series.times[0]), rel=0.2)
    facts = {
        "id": "17",
        "nodes": ["c1"],
        "node": "c1",
        "start": start,
        "interval": 1.0,
        "cores": float(cores),
    }
    record, _ = summarise_from_server(
        server, JobInputs(facts_from(facts), end_from({"start": start, "end": end, "state": "COMPLETED"}))
    )
    assert 0 < record["used"]["cores_mean"] <= cores * 1.1
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < record["used"]["memory_peak_bytes"] < total
    assert record["used"]["node_idle_cores"] <= cores * 1.1
    assert [node["node"] for node in record["nodes"]] == ["c1"]
    assert record["data"]["problems"] == [
        "measured per node by node_exporter: includes what other jobs did on its nodes meanwhile"
    ]
    assert "node_exporter" in render_report(record, Style())
    with pytest.raises(JoblensError, match="has no samples of job 17 or of its nodes"):
        summarise_from_server(server, JobInputs(facts_from({**facts, "nodes": ["c2"]}), None))


Value = Callable[[int], float]


def write_series(found: Running, start: float, series: Mapping[tuple[tuple[str, str], ...], Value]) -> None:
    """As remote write has it, every 10 s for 10 minutes."""
    made = []
    for labels, value in series.items():
        parts = tuple(_label(*label) for label in sorted(labels))
        samples = b"".join(
            b"\x12\x10\x09" + struct.pack("<d", value(at)) + b"\x10" + varint(round((start + at) * 1000))
            for at in range(0, 601, 10)
        )
        made.append(Series(parts, samples, 61))
    settings = settings_of(found)
    writer = Writer(write_url(settings), settings.token_file)
    writer.send(compress(encode_series(made)))
    writer.close()


def named(name: str, **labels: str) -> tuple[tuple[str, str], ...]:
    return (("__name__", name), *labels.items())


def of_dcgm(host: str) -> dict[tuple[tuple[str, str], ...], Value]:
    """Two cards: one half busy, one never used."""
    found: dict[tuple[tuple[str, str], ...], Value] = {}
    for card, busy in (("0", 50.0), ("1", 0.0)):
        labels = {
            "instance": f"{host}:9400", "gpu": card, "UUID": f"GPU-{host}-{card}", "modelName": "A100",
            "Hostname": host, "device": f"nvidia{card}",
        }  # fmt: skip
        figures = {
            "DCGM_FI_DEV_GPU_UTIL": busy, "DCGM_FI_DEV_FB_USED": 1024.0 + busy,
            "DCGM_FI_DEV_FB_FREE": 3072.0 - busy, "DCGM_FI_DEV_POWER_USAGE": 100.0,
        }  # fmt: skip
        for name, figure in figures.items():
            found[named(name, **labels)] = lambda at, figure=figure: figure  # type: ignore[misc]
        found[named("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", **labels)] = lambda at: 5e6 + at * 100_000.0
    for mode, cores in (("user", 3.0), ("idle", 5.0)):
        for core in ("0", "1"):
            labels = {"instance": f"{host}:9100", "mode": mode, "cpu": core}
            found[named("node_cpu_seconds_total", **labels)] = lambda at, cores=cores: 1000 + at * cores / 2  # type: ignore[misc]
    found[named("node_load1", instance=f"{host}:9100")] = lambda at: 1.0
    found[named("node_memory_MemTotal_bytes", instance=f"{host}:9100")] = lambda at: 8e9
    found[named("node_memory_MemAvailable_bytes", instance=f"{host}:9100")] = lambda at: 6e9 - at * 1e6
    return found


def test_dcgm_exporter(tmp_path: Path) -> None:
    """GPUs of two nodes, with CPU and memory from node_exporter beside them; a third node is not meant."""
    with started(VICTORIAMETRICS, tmp_path) as found:
        start = time.time() // 10 * 10 - 700
        for host in ("c1", "c2", "c3"):
            write_series(found, start, of_dcgm(host))
        server = Server(found.url, found.token_file)
        wait_for("series", lambda: server.instant('DCGM_FI_DEV_GPU_UTIL{instance="c3:9400"}', start + 600))
        facts = {
            "id": "17",
            "nodes": ["c1", "c2"],
            "node": "c1",
            "start": start,
            "interval": 1.0,
            "cores": 16.0,
        }
        record, _ = summarise_from_server(
            server, JobInputs(facts_from(facts), end_from({"start": start, "end": start + 600, "state": "X"}))
        )
        server.close()
    assert record["used"]["cores_mean"] == pytest.approx(6.0, rel=0.02)
    assert record["used"]["memory_peak_bytes"] == pytest.approx(2 * 2.6e9, rel=0.02)
    assert [(gpu["node"], gpu["gpu"], gpu["model"]) for gpu in record["gpus"]] == [
        (host, f"GPU-{host}-{card}", "A100") for host in ("c1", "c2") for card in "01"
    ]
    first, second = record["gpus"][:2]
    assert first["busy_mean"] == pytest.approx(0.5)
    assert second["busy_mean"] == 0.0
    assert first["memory_peak_bytes"] == 1074 << 20
    assert first["memory_total_bytes"] == 4096 << 20
    assert first["energy_joules"] == pytest.approx(60_000, rel=0.02)
    assert "the DCGM exporter" in record["data"]["problems"][0]
    assert "node_exporter" in record["data"]["problems"][0]


def of_omnistat(host: str) -> dict[tuple[tuple[str, str], ...], Value]:
    card = {"instance": host, "card": "0"}
    return {
        named(
            "rmsjob_info", instance=host, jobid="99", user="userB", partition="gpu", nodes="2"
        ): lambda at: 1.0,
        named("rocm_utilization_percentage", **card): lambda at: 80.0,
        named("rocm_vram_used_percentage", **card): lambda at: 25.0,
        named("rocm_vram_total_bytes", **card): lambda at: 64e9,
        named("rocm_average_socket_power_watts", **card): lambda at: 300.0,
        named("omnistat_mem_total_bytes", instance=host): lambda at: 512e9,
        named("omnistat_mem_available_bytes", instance=host): lambda at: 500e9,
        named("omnistat_host_cpu_aggregate_core_utilization", instance=host): lambda at: 4.0,
    }


def test_omnistat(tmp_path: Path) -> None:
    """It tells of jobs too: which ones, whose, where and when."""
    with started(VICTORIAMETRICS, tmp_path) as found:
        start = time.time() // 10 * 10 - 700
        for host in ("c1", "c2"):
            write_series(found, start, of_omnistat(host))
        server = Server(found.url, found.token_file)
        wait_for("series", lambda: server.instant('rmsjob_info{instance="c2"}', start + 600))
        told = inputs_from_series(server, "99")
        record, _ = summarise_from_server(server, told)
        server.close()
    assert (told.facts["user"], told.facts["partition"], told.facts["nodes"]) == (
        "userB",
        "gpu",
        ["c1", "c2"],
    )
    assert told.facts["start"] == start
    assert told.end == end_from({"start": start, "end": start + 600, "state": "ENDED"})
    assert record["used"]["cores_mean"] == pytest.approx(8.0, rel=0.05)
    assert record["used"]["memory_peak_bytes"] == 24e9
    assert [gpu["node"] for gpu in record["gpus"]] == ["c1", "c2"]
    assert [gpu["busy_mean"] for gpu in record["gpus"]] == [pytest.approx(0.8)] * 2
    assert record["gpus"][0]["memory_peak_bytes"] == 16e9


_TEXT = st.text(max_size=4) | st.sampled_from(["4242", "c1", "c1:9100", "NaN", "12", "-1e400"])
_POINT = st.tuples(st.floats() | st.integers(0, 2 * 10**9), _TEXT).map(list)
_NAMES = st.sampled_from(
    ["jobid", "cluster", "node", "instance", "uid", "gpu", "__name__", "joblens_question"]
)
_SERIES = st.fixed_dictionaries(
    {"metric": st.dictionaries(_NAMES, _TEXT, max_size=4), "values": st.lists(_POINT, max_size=4)}
)


@given(st.lists(st.lists(_SERIES, max_size=3), min_size=1, max_size=8))
def test_series_that_make_no_sense(answers: list[list[Any]]) -> None:
    """Whatever a server tells: a report, or one of our errors."""
    server, turn = Server("http://127.0.0.1:1"), iter(range(10**6))

    def send(path: str, form: str, method: str) -> tuple[int, bytes]:
        answer = answers[next(turn) % len(answers)]
        data: Any = (
            [one["metric"].get("node", "x") for one in answer] if "label" in path else {"result": answer}
        )
        return 200, json.dumps({"status": "success", "data": data}).encode()

    server._send = send  # type: ignore[method-assign]
    facts = {"id": "17", "nodes": ["c1"], "node": "c1", "start": 1e9, "interval": 1.0, "cores": 2.0}
    with suppress(JoblensError):
        summarise_from_server(
            server,
            JobInputs(facts_from(facts), end_from({"start": 1e9, "end": 1e9 + 60, "state": "COMPLETED"})),
        )
    with suppress(JoblensError, LookupError):
        summarise_from_server(server, inputs_from_series(server, "4242"))

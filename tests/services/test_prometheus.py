"""A real Prometheus scrapes a real agent."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from programs import need
from waiting import wait_for

from .conftest import Scraped, StartAgent
from .openmetrics import parse_openmetrics
from .running import run_joblens
from .watched import Load, write_job_file

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
NODES = sorted(path.parent for path in (Path(__file__).parents[1] / "nodes").glob("*/proc"))
STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


def test_the_agent_is_scraped(scraped: Scraped) -> None:
    """The target is up, and every core has its time."""
    scraped.prometheus.wait_for('up{job="joblens"} == 1')
    found = scraped.prometheus.wait_for('joblens_cpu_user_seconds_total{cpu!="total"}')
    assert len(found) == os.sysconf("SC_NPROCESSORS_ONLN")


def test_time_of_all_states_is_the_number_of_cores(scraped: Scraped) -> None:
    """All states of a core together pass at one second per second."""
    rates = " + ".join(f'sum(rate(joblens_cpu_{it}_seconds_total{{cpu!="total"}}[10s]))' for it in STATES)
    cores = 'count(joblens_cpu_idle_seconds_total{cpu!="total"})'
    scraped.prometheus.wait_for(f"abs(({rates}) / {cores} - 1) < 0.1")


@pytest.mark.parametrize("root", [Path("/"), *NODES], ids=lambda root: root.name or "this machine")
def test_promtool_has_nothing_to_say(root: Path) -> None:
    """`promtool check metrics` accepts names, types and units, of this machine and of the recorded ones."""
    need("promtool")
    page = run_joblens("agent", "--once", "--root", str(root))
    assert page.returncode == 0
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page.stdout, capture_output=True, text=True, check=False
    )
    assert (checked.stdout, checked.stderr, checked.returncode) == ("", "", 0)


def test_openmetrics_by_content_negotiation(agent: StartAgent) -> None:
    """Who asks for OpenMetrics gets it, in strict form; who does not gets Prometheus's older text."""
    started = agent("process_metrics = true")
    page = started.page(Accept=f"{OPENMETRICS},text/plain;q=0.5")
    assert page.content_type == OPENMETRICS + "; charset=utf-8"
    families = parse_openmetrics(page.text)
    assert families["joblens_cpu_user_seconds"].heads["UNIT"] == "seconds"
    assert families["joblens_process_threads"].samples
    older = started.page(Accept="text/plain")
    assert older.content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert "# EOF" not in older.text


def test_prometheus_reads_openmetrics(scraped: Scraped) -> None:
    """Prometheus asks for OpenMetrics and understands it: only there a metric has a unit."""
    found = wait_for(
        "what Prometheus knows of a metric",
        lambda: scraped.prometheus.ask("targets/metadata", metric="joblens_cpu_user_seconds"),
    )
    assert (found[0]["type"], found[0]["unit"]) == ("counter", "seconds")


def test_a_jobs_series_come_and_go(scraped: Scraped, tmp_path: Path) -> None:
    """A job that a job file names has its series from its start, and no more after its end."""
    ask = scraped.prometheus
    job = f"4{os.getpid()}"
    load = Load("short_children", tmp_path / "file", [])
    try:
        assert load.stands()
        file = write_job_file(scraped.job_files, job, load)
        (info,) = ask.wait_for(f'joblens_job_info{{jobid="{job}",user!=""}}')
        ask.wait_for(f'joblens_job_processes{{jobid="{job}"}} == 1')
        load.go()
        assert load.stands()
        used = f'joblens_job_cpu_seconds_total{{jobid="{job}"}}'
        ask.wait_for(f"{used} > 1.4")
        load.end()
        ended = time.time()
        wait_for(f"the end of {used}", lambda: not ask.query(used))
        file.unlink()
    finally:
        load.close()
    labels = {
        "cluster": "lab",
        "node": "c1",
        "source": "file",
        "cpu_from": "processes",
        "uid": str(os.getuid()),
    }
    assert labels.items() <= info.labels.items()
    # A series that is not on a page is stale with that scrape; only two may still have had it.
    (samples,) = ask.query(f"{used}[5m]")
    assert sum(at > ended for at, _ in samples.values) <= 2

"""The reference exporter: a Flask page with prometheus_client and psutil.

`python -m bench.flask_exporter PORT PID`: CPU, memory, disks and network of the node; CPU, memory, I/O,
threads and context switches of the process and its descendants. It collects when it is scraped.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Callable, Dict, List

import flask
import psutil  # type: ignore[import-untyped, unused-ignore]
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_OF_PROCESS = ("pid", "name")


class Page:
    def __init__(self, root: int) -> None:
        self.registry = CollectorRegistry()
        self.gauges: Dict[str, Gauge] = {}
        self.root = psutil.Process(root)

    def render(self) -> bytes:
        for gauge in self.gauges.values():
            gauge.clear()  # else processes that have ended would stay
        self._node()
        for process in [self.root, *self.root.children(recursive=True)]:
            self._process(process)
        return generate_latest(self.registry)

    def _set(self, name: str, labels: Dict[str, str], value: float) -> None:
        gauge = self.gauges.get(name)
        if gauge is None:
            gauge = self.gauges[name] = Gauge(name, name, list(labels), registry=self.registry)
        gauge.labels(*labels.values()).set(value)

    def _set_all(self, prefix: str, labels: Dict[str, str], found: Any) -> None:
        for name, value in found._asdict().items():
            self._set(f"{prefix}_{name}", labels, value)

    def _node(self) -> None:
        for core, times in enumerate(psutil.cpu_times(percpu=True)):
            self._set_all("node_cpu", {"core": str(core)}, times)
        of_node = {"node": "here"}
        self._set_all("node_cpu_stats", of_node, psutil.cpu_stats())
        self._set_all("node_memory", of_node, psutil.virtual_memory())
        self._set_all("node_swap", of_node, psutil.swap_memory())
        for minutes, value in zip((1, 5, 15), psutil.getloadavg()):
            self._set(f"node_load{minutes}", of_node, value)
        for name, disk in psutil.disk_io_counters(perdisk=True).items():
            self._set_all("node_disk", {"disk": name}, disk)
        for name, nic in psutil.net_io_counters(pernic=True).items():
            self._set_all("node_network", {"device": name}, nic)

    def _process(self, process: psutil.Process) -> None:
        """Skip a process that has ended."""
        try:
            with process.oneshot():
                labels = dict(zip(_OF_PROCESS, (str(process.pid), process.name())))
                self._set_all("process_cpu", labels, process.cpu_times())
                self._set_all("process_memory", labels, process.memory_info())
                self._set_all("process_switches", labels, process.num_ctx_switches())
                self._set("process_threads", labels, process.num_threads())
                self._set_all("process_io", labels, process.io_counters())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return


def make_app(root: int) -> flask.Flask:
    app, page = flask.Flask("exporter"), Page(root)
    scrapes: List[int] = [0]

    def metrics() -> flask.Response:
        scrapes[0] += 1
        text = page.render() + f"exporter_scrapes {scrapes[0]}\n".encode()
        return flask.Response(text, content_type=CONTENT_TYPE_LATEST)

    add: Callable[..., None] = app.add_url_rule
    add("/metrics", "metrics", metrics)
    return app


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line for each scrape
    make_app(int(sys.argv[2])).run("127.0.0.1", int(sys.argv[1]))

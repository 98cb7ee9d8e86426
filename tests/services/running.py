"""Real programs as tests run them: on loopback, with their words kept, waited for in bounded time."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from waiting import PATIENCE, wait_for

# A machine without one of the collectors' sources says so once, which is as it should be.
ALWAYS_SAID = re.compile(r"joblens agent: (metrics at http://\S+|\w+: not on this machine: .*)")
# No proxy of the environment may stand between a test and its own server.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Page(NamedTuple):
    status: int
    content_type: str
    text: str


def fetch(url: str, **headers: str) -> Page:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  # of the test's own server
    try:
        with _OPENER.open(request, timeout=PATIENCE) as answer:
            return Page(answer.status, answer.headers["Content-Type"], answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Page(error.code, error.headers["Content-Type"], error.read().decode())


def run_joblens(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "joblens", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


class Agent:
    """A `joblens agent` that runs: its page, its words, its end."""

    def __init__(self, folder: Path, config: str, *words: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config, self._said = folder / "joblens.toml", folder / "stderr"
        self.config.write_text(config)
        command = [sys.executable, "-m", "joblens", "agent", "--config", str(self.config)]
        if "--listen" not in words:
            command += ["--listen", "127.0.0.1:0"]
        with self._said.open("w") as stderr:
            self.process = subprocess.Popen([*command, *words], stdout=stderr, stderr=stderr)
        self.url = wait_for("the agent's address", self._address)
        self.address = ("127.0.0.1", int(self.url.rpartition("/")[0].rpartition(":")[2]))

    def _address(self) -> str:
        assert self.process.poll() is None, f"the agent ended: {self.said()}"
        match = re.search(r"metrics at (http\S+)", self._said.read_text())
        return match[1] if match else ""

    def said(self) -> list[str]:
        """Its words, but for those that it says each time."""
        return [line for line in self._said.read_text().splitlines() if not ALWAYS_SAID.fullmatch(line)]

    def page(self, **headers: str) -> Page:
        return fetch(self.url, **headers)

    def series(self, name: str) -> list[str]:
        """The lines of one metric."""
        return [line for line in self.page().text.splitlines() if re.match(rf"{name}[ {{]", line)]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, within: float = PATIENCE) -> int:
        self.process.terminate()
        return self.process.wait(within)


@contextmanager
def running_agent(folder: Path, config: str = "", *words: str) -> Iterator[Agent]:
    """Ends it by SIGTERM. It must then exit with 0, and have said nothing that no test expects.

    A test that expects words checks them and ends the agent itself.
    """
    agent = Agent(folder, config, *words)
    try:
        yield agent
        if agent.process.poll() is None:
            assert agent.stop() == 0
            assert agent.said() == [], agent.said()
        assert agent.process.returncode == 0
    finally:
        agent.process.kill()
        agent.process.wait()


class Series(NamedTuple):
    labels: dict[str, str]
    values: list[tuple[float, float]]  # time and value


class Prometheus:
    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, path: str, **arguments: str) -> Any:
        page = fetch(f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(arguments)}")
        answer = json.loads(page.text)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[Series]:
        """An instant vector, or a range such as `up[1m]`."""
        found = self.ask("query", query=expression)["result"]
        return [
            Series(it["metric"], [(at, float(value)) for at, value in it.get("values") or [it["value"]]])
            for it in found
        ]

    def wait_for(self, expression: str) -> list[Series]:
        return wait_for(expression, lambda: self.query(expression))


_PROMETHEUS = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: joblens
    static_configs: [{{targets: ["{target}"]}}]
"""


@contextmanager
def running_prometheus(folder: Path, target: str = "", config: str = "") -> Iterator[Prometheus]:
    """One that scrapes the target each second, or does what the configuration says."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(config or _PROMETHEUS.format(target=target))
    listen = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={listen}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        wait_for("Prometheus", lambda: _is_ready(f"http://{listen}/-/ready"))
        yield Prometheus(f"http://{listen}")
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _is_ready(url: str) -> bool:
    try:
        return fetch(url).status == 200
    except OSError:
        return False


def free_port() -> int:
    """Outside of those that the kernel gives to whoever asks for any: else one of the many programs that
    other tests start could get it before it is used. By real chance, as all tests have one seed."""
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for port in random.SystemRandom().sample(range(10_000, max(first, 20_000)), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def count_open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))

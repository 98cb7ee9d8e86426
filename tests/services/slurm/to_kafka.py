"""A Kafka broker on the login node of a cluster, and what a hub has written there, read on that node."""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

from ..kafka.broker import CLUSTER, PROPERTIES, jars, java
from .lab import Lab

_PORTS = {"port": 9092, "controller": 9093}
_SINK = f"""
[hub.sinks.kafka]
brokers = "127.0.0.1:{_PORTS["port"]}"
"""
_READ = """
import sys
from services.kafka.made import read_topic
for message in read_topic(sys.argv[1], sys.argv[2]):
    print(message.value().decode())
"""
_TESTS = Path(__file__).parents[2]


class LabKafka:
    def __init__(self, lab: Lab, path: str) -> None:
        """It is on its way: a hub waits for it."""
        self.lab = lab
        lab.path("kafka").mkdir()
        settings = f"{lab.folder}/kafka/server.properties"
        lab.login.path(settings).write_text(PROPERTIES.format(folder=f"{lab.folder}/kafka", **_PORTS))
        lab.login.run(*java(path, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", settings))
        lab.start(lab.login, *java(path, "kafka.Kafka", settings), log="kafka")
        with lab.path("etc/hub.toml").open("a") as file:
            file.write(_SINK)

    def rows(self, set_name: str) -> list[dict[str, Any]]:
        words = (sys.executable, "-c", _READ, f"127.0.0.1:{_PORTS['port']}", f"joblens.{set_name}")
        done = self.lab.login.run(*words, variables={"PYTHONPATH": str(_TESTS)})
        return [json.loads(line, parse_float=Decimal) for line in done.out.splitlines()]


def start_kafka(lab: Lab) -> LabKafka | None:
    """Before the hub. None where there is no real one."""
    path = jars()
    return LabKafka(lab, path) if path else None

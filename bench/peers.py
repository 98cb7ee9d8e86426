"""Store the same samples in a Prometheus block and in a data folder of VictoriaMetrics."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Iterable, Iterator, NamedTuple

from bench.children import BenchError, connect, cpu_seconds, free_port, started
from bench.recording import NODE
from bench.timing import NS
from joblens.core.model import ABSENT, Key, Sample, Schema
from joblens.wire.exposition import render_labels, series_name

_TIMEOUT = 120.0
_LINES_PER_REQUEST = 100_000
_MERGE_SECONDS = 30.0


class Filled(NamedTuple):
    bytes: int
    cpu: float  # seconds that it took, from text to what lies on disk


class _Names:
    """The text before each value, cached while schema and keys are the same objects."""

    def __init__(self) -> None:
        self._known: dict[tuple[Schema, tuple[Key, ...]], list[str]] = {}

    def of(self, sample: Sample) -> list[str]:
        schema, keys = sample.rows.schema, sample.rows.keys
        found = self._known.get((schema, keys))
        if found is None:
            labels = [render_labels((*schema.labels, "node"), (*key, NODE)) for key in keys]
            found = [series_name(schema, column) + label for label in labels for column in schema.columns]
            self._known[(schema, keys)] = found
        return found


def render_lines(samples: Iterable[Sample], in_seconds: bool) -> Iterator[str]:
    """Write with timestamps: OpenMetrics has them in seconds, Prometheus' own format in milliseconds.

    They are whole seconds, because their scrapers align them; the lake keeps the actual time of each tick.
    """
    names = _Names()
    for sample in samples:
        columns = sample.rows.schema.columns
        width = len(columns)
        seconds = round(sample.time_ns / NS)
        stamp = str(seconds) if in_seconds else f"{seconds}000"
        for place, (name, value) in enumerate(zip(names.of(sample), sample.rows.values)):
            if value != ABSENT:
                yield f"{name} {columns[place % width].in_base_units(value)} {stamp}\n"


def fill_prometheus(samples: list[Sample], values: int) -> Filled:
    """Create a compacted block with promtool, which uses the server's code."""
    program = find_program("promtool", "prometheus")
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
        text, blocks = Path(name, "samples.txt"), Path(name, "blocks")
        with text.open("w", encoding="utf-8") as file:
            file.writelines(render_lines(samples, in_seconds=True))
            file.write("# EOF\n")
        command = [program, "tsdb", "create-blocks-from", "openmetrics", "-q", str(text), str(blocks)]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        finally:
            child.kill()
        stored = sum(
            json.loads(path.read_bytes())["stats"]["numSamples"] for path in blocks.glob("*/meta.json")
        )
        if child.returncode or stored != values:
            raise BenchError(f"promtool ended with {child.returncode}, {stored} of {values} values stored")
        return Filled(size_of(blocks), usage.ru_utime + usage.ru_stime)


def fill_victoria(samples: list[Sample], values: int) -> Filled:
    program = find_program("victoria-metrics", "victoria-metrics")
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
        port = free_port()
        command = [
            program,
            f"-storageDataPath={name}",
            f"-httpListenAddr=127.0.0.1:{port}",
            "-retentionPeriod=12",
            "-loggerLevel=ERROR",
        ]
        with started(command) as pid:
            connection = connect(port)
            before = cpu_seconds(pid)
            for text in _requests(samples):
                _ask(connection, "POST", "/api/v1/import/prometheus", text)
            _ask(connection, "GET", "/internal/force_flush")
            _ask(connection, "GET", "/internal/force_merge")
            _await_merge(connection, Path(name, "data"), values)
            cpu = cpu_seconds(pid) - before
        # Only after it has ended is all on disk; what is in cache/ is not data.
        return Filled(size_of(Path(name, "data")) + size_of(Path(name, "indexdb")), cpu)


def _requests(samples: list[Sample]) -> Iterator[bytes]:
    lines: list[str] = []
    for line in render_lines(samples, in_seconds=False):
        lines.append(line)
        if len(lines) == _LINES_PER_REQUEST:
            yield "".join(lines).encode()
            lines = []
    yield "".join(lines).encode()


def _ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes = b"") -> str:
    connection.timeout = _TIMEOUT
    connection.request(method, path, body)
    answer = connection.getresponse()
    text = answer.read().decode()
    if answer.status not in (200, 204):
        raise BenchError(f"{path} answered {answer.status}: {text[:200]}")
    return text


def _await_merge(connection: http.client.HTTPConnection, data: Path, values: int) -> None:
    """Wait until the merge has left all values in one part."""
    deadline = time.monotonic() + _MERGE_SECONDS
    while True:
        rows = _total(_ask(connection, "GET", "/metrics"), "vm_rows", "storage/")
        parts = list(data.glob("*/*_*/*_*/values.bin"))
        if rows == values and len(parts) == 1 and not list(data.glob("*/*_*/tmp/*")):
            return
        if time.monotonic() > deadline:
            raise BenchError(f"VictoriaMetrics has {rows:g} of {values} values in {len(parts)} parts")
        time.sleep(0.5)


def _total(page: str, name: str, kind: str) -> float:
    return sum(
        float(value) for value in re.findall(rf'^{name}{{type="{kind}[^}}]*}} (\S+)$', page, re.MULTILINE)
    )


def find_program(name: str, package: str) -> str:
    found = shutil.which(name)
    if not found:
        raise BenchError(f"{name} is missing: tests/services/install installs Debian's package {package}")
    return found


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

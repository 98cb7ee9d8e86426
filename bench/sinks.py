"""The hub's sinks: CPU per update of a set and bytes per value of real samples, with LDMS' figures."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Iterable

from bench.interpreters import Interpreter
from bench.messages import SETS, VALUES, Messages
from bench.peers import size_of
from bench.recording import load, record, without_processes
from bench.saving import values_in
from bench.table import Line, Section, at_most
from joblens.core.model import Sample
from joblens.hub.segments import Segment, pack_record
from joblens.hub.sink import Sink
from joblens.hub.sinks.csv_tree import CsvSink
from joblens.hub.sinks.lake import LakeSink
from joblens.hub.sinks.remote_write import RemoteWriteSink, Server
from joblens.store.home import find_home, make_home
from joblens.store.lake.compact import compact
from joblens.wire.batch import Batch
from joblens.wire.header import Head

_NODES, _TICKS, _BATCHES, _ROUNDS = 200, 10, 3, 5
_LDMS_BYTES, _LDMS_SECONDS = 7.0, 16e-6
_GOAL_BYTES = 0.6
_SEGMENT_SECONDS = 30


class _Nowhere(Server):
    """A server that accepts everything, so that its cost is not measured."""

    def send(self, body: bytes) -> None:
        self.bytes = getattr(self, "bytes", 0) + len(body)


def measure_sinks(pythons: list[Interpreter]) -> list[Section]:
    return [_measure_cpu(), _measure_bytes()]


def _open_sinks(folder: Path) -> dict[str, Sink]:
    return {
        "lake": LakeSink("bench", make_home(find_home(folder / "store"))),
        "CSV": CsvSink(folder / "tree", folder / "undo"),
        "remote write": RemoteWriteSink(_Nowhere("http://127.0.0.1:1"), folder / "sent"),
    }


def _measure_cpu() -> Section:
    lines: list[Line] = []
    updates = _NODES * _BATCHES * _TICKS * SETS
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
        folder = Path(name)
        segment = _write(folder, 1, _fleet())
        for what, sink in _open_sinks(folder).items():
            found = [seconds / updates for seconds in _repeat(sink, segment)]
            lines.append(at_most(what, "own", "seconds", found, beside=[_LDMS_SECONDS] * len(found)))
    notes = [
        f"{updates} updates of {VALUES} values, {_NODES} nodes with a job each, batches of {_TICKS} ticks",
        "LDMS with CSV, quoted: 16 µs with test sets, 27 to 30 with real ones; `hub` has the goal",
    ]
    return Section("Sinks, CPU per update of a set; reference: LDMS with CSV", lines, notes)


def _repeat(sink: Sink, segment: Segment) -> Iterable[float]:
    for number in range(_ROUNDS + 1):
        sink.recover(segment.number + number - 1)
        begin = time.process_time()
        sink.take(Segment(segment.number + number, segment.path))
        if number:  # the first one learns layouts and makes files, which all later ones add to
            yield time.process_time() - begin


def _fleet() -> list[bytes]:
    """Encode with one job per node, which CSV needs."""
    messages = Messages(_TICKS, jobs=True)
    return [
        messages.request(node, sequence).partition(b"\r\n\r\n")[2]
        for sequence in range(_BATCHES)
        for node in range(_NODES)
    ]


def _measure_bytes() -> Section:
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
        folder = Path(name)
        print("bench: sinks, sampling for 45 s", file=sys.stderr, flush=True)
        (folder / "recorded").mkdir()
        record(folder / "recorded")
        batches = load(folder / "recorded")
        lines: list[Line] = []
        for what, samples in (("all sets", batches), ("node only", without_processes(batches))):
            ticks = _by_tick(sample for some in samples.values() for sample in some)
            lines += _store(folder / what, what, ticks, sum(map(values_in, ticks)))
    notes = [
        "15 minutes of this machine under load at 1 Hz, in segments of 30 s; LDMS' CSV: 7 B, quoted",
        "segments of one node are small: a fleet's are larger, and their files smaller per value",
    ]
    return Section("Sinks, bytes per value of real samples; reference: LDMS' CSV", lines, notes)


def _by_tick(samples: Iterable[Sample]) -> list[list[Sample]]:
    ticks: dict[int, list[Sample]] = {}
    for sample in samples:
        ticks.setdefault(sample.time_ns, []).append(sample)
    return [some for _, some in sorted(ticks.items())]


def _store(folder: Path, what: str, ticks: list[list[Sample]], values: int) -> list[Line]:
    folder.mkdir()
    sinks = _open_sinks(folder)
    for number in range(0, len(ticks), _SEGMENT_SECONDS):
        some = ticks[number : number + _SEGMENT_SECONDS]
        batches = [_encode(some[at : at + _TICKS]) for at in range(0, len(some), _TICKS)]
        segment = _write(folder, number + 1, batches)
        for sink in sinks.values():
            sink.recover(number)
            sink.take(segment)
        segment.path.unlink()
    lake = sinks["lake"]
    assert isinstance(lake, LakeSink)
    before = size_of(lake.lake.path)
    compact(lake.lake, set)
    compacted = sum(
        path.stat().st_size
        for set_folder in lake.lake.path.glob("set=*")
        for path in lake.lake.files(set_folder.name.removeprefix("set="))
    )
    sizes = {"lake, every 30 s": before, "lake, compacted": compacted, "CSV": size_of(folder / "tree")}
    return [
        at_most(
            f"{what}, {how}", "own", "each", [size / values], beside=[_LDMS_BYTES],
            most=_GOAL_BYTES if how == "lake, compacted" else None,
        )
        for how, size in sizes.items()
    ]  # fmt: skip


def _encode(ticks: list[list[Sample]]) -> bytes:
    batch = Batch()
    for samples in ticks:
        batch.add(samples)
    header: Head = {"cluster": "bench", "node": "n1", "jobs": [["bench", "1", "n1", "u", 1000]]}
    return batch.encode(header)


def _write(folder: Path, number: int, batches: Iterable[bytes]) -> Segment:
    path = folder / f"{number:08d}.sealed"
    path.write_bytes(b"".join(pack_record(time.time_ns(), batch) for batch in batches))
    return Segment(number, path)

"""Messages of taskstats and the process connector, as the kernel packs them."""

from __future__ import annotations

import struct

from joblens.collectors.ends.connector import Event
from joblens.collectors.ends.netlink import pack_attribute
from joblens.collectors.ends.taskstats import TaskEnd

# include/uapi/linux/taskstats.h, field by field: not the format string that the parser has.
_FIELDS = (
    ("version", 0, "H"), ("status", 4, "I"), ("flags", 8, "B"), ("slices", 16, "Q"),
    ("run_delay_ns", 24, "Q"),
    ("cpu_ns", 72, "Q"), ("name", 80, "32s"), ("uid", 120, "I"), ("thread", 128, "I"), ("parent", 132, "I"),
    ("elapsed", 144, "Q"), ("user", 152, "Q"), ("system", 160, "Q"), ("minor_faults", 168, "Q"),
    ("major_faults", 176, "Q"), ("peak_kib", 200, "Q"), ("read_chars", 216, "Q"), ("written_chars", 224, "Q"),
    ("read_bytes", 248, "Q"), ("written_bytes", 256, "Q"), ("cancelled_bytes", 264, "Q"),
    ("voluntary_switches", 272, "Q"), ("involuntary_switches", 280, "Q"),
)  # fmt: skip
LAST = 0x20


def make_task(thread: int, **given: int) -> TaskEnd:
    values = dict.fromkeys(TaskEnd._fields, 0) | {"version": 16, "elapsed": 1000, "voluntary_switches": 1}
    return TaskEnd(**{**values, "name": b"prog", "thread": thread, **given})  # type: ignore[arg-type]


def pack_stats(task: TaskEnd, process: int) -> bytes:
    size = 416 if task.version >= 12 else 344
    data = bytearray(size)
    for name, offset, code in _FIELDS:
        struct.pack_into("=" + code, data, offset, getattr(task, name))
    if task.version >= 12:
        struct.pack_into("=I", data, 368, process)
    return bytes(data)


def pack_message(task: TaskEnd, process: int, with_group: bool = False) -> bytes:
    parts = pack_attribute(4, pack_attribute(1, struct.pack("=I", task.thread)) + _stats(task, process))
    if with_group:
        parts += pack_attribute(5, pack_attribute(2, struct.pack("=I", process)) + _stats(task, process))
    body = struct.pack("=BBH", 2, 1, 0) + parts
    return struct.pack("=IHHII", 16 + len(body), 31, 0, 0, 0) + body


def _stats(task: TaskEnd, process: int) -> bytes:
    return pack_attribute(3, pack_stats(task, process))


def pack_event(event: Event) -> bytes:
    inner = struct.pack("=IIQ6I", event.what, event.cpu, *event[3:])
    message = struct.pack("=IIIIHH", 1, 1, event.number, 0, len(inner), 0) + inner
    return struct.pack("=IHHII", 16 + len(message), 3, 0, 0, 0) + message

"""The supervisor as the heir of the job: what it has waited for is the job's, what it did itself is not."""

from __future__ import annotations

from typing import List, Tuple

from joblens.collectors.process_files import parse_io, parse_stat
from joblens.collectors.processes import PROCESS, ProcessKey
from joblens.host import Host
from joblens.model import ABSENT

_CHILD_USER, _CHILD_SYSTEM = (PROCESS.position(f"children_{name}_seconds") for name in ("user", "system"))
_NOTHING_OWN = tuple(PROCESS.position(name) for name in ("user_seconds", "system_seconds", "threads"))
_READ_CHARS = PROCESS.position("read_chars_bytes")


class Heir:
    """Counts from its first look, for a process keeps what it inherited when it becomes joblens."""

    def __init__(self, host: Host, pid: int) -> None:
        self.host, self.pid = host, pid
        self.entries: List[Tuple[ProcessKey, List[int]]] = []
        self._first = self._read()[1]

    def look(self) -> None:
        """`entries` is empty once it is gone: then nobody inherits."""
        try:
            key, values = self._read()
        except OSError:
            self.entries = []
            return
        self.entries = [(key, [_since(now, first) for now, first in zip(values, self._first)])]

    def _read(self) -> Tuple[ProcessKey, List[int]]:
        path = f"proc/{self.pid}"
        fields = parse_stat(path, self.host.read(path + "/stat")).fields
        parent, group, session, terminal = map(int, fields[1:5])
        key = ProcessKey(self.pid, int(fields[19]), parent, group, session, terminal, 0, "", "", "")
        values = [ABSENT] * len(PROCESS.columns)
        for place in _NOTHING_OWN:
            values[place] = 0
        values[_CHILD_USER], values[_CHILD_SYSTEM] = int(fields[13]), int(fields[14])
        values[_READ_CHARS : _READ_CHARS + 7] = self._read_io(path)
        return key, values

    def _read_io(self, path: str) -> List[int]:
        try:
            return parse_io(path, self.host.read(path + "/io"))
        except OSError:
            return [ABSENT] * 7


def _since(now: int, first: int) -> int:
    return ABSENT if ABSENT in (now, first) else now - first

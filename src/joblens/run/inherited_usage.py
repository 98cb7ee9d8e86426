"""Usage that the kernel accumulates for the supervisor from children it has waited for: the job's, unlike its
own."""

from __future__ import annotations

from joblens.collectors.process.collector import PROCESS, ProcessKey
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT
from joblens.core.procfs import parse_io, parse_stat
from joblens.run.usage import Inherited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

_CHILD_USER, _CHILD_SYSTEM = (PROCESS.position(f"children_{name}_seconds") for name in ("user", "system"))
_NOTHING_OWN = tuple(PROCESS.position(name) for name in ("user_seconds", "system_seconds", "threads"))
_READ_CHARS = PROCESS.position("read_chars_bytes")


class InheritedUsage:
    """Relative to the start of the command: exec(2) keeps what the process had accumulated before."""

    def __init__(self, host: Host, pid: int, before: Optional[Inherited] = None) -> None:
        self.host, self.pid = host, pid
        self.entries: List[Tuple[ProcessKey, List[int]]] = []
        _, self._first = self._parse(before or self._read())

    def read(self, inherited: Optional[Inherited] = None) -> None:
        """Fill `entries`, which is empty once the supervisor is gone."""
        try:
            key, values = self._parse(inherited or self._read())
        except OSError:
            self.entries = []
            return
        self.entries = [(key, [_since(now, first) for now, first in zip(values, self._first)])]

    def _read(self) -> Inherited:
        stat = self.host.read(f"proc/{self.pid}/stat")
        try:
            return Inherited(stat, self.host.read(f"proc/{self.pid}/io"))
        except OSError:
            return Inherited(stat, b"")

    def _parse(self, inherited: Inherited) -> Tuple[ProcessKey, List[int]]:
        path = f"proc/{self.pid}"
        fields = parse_stat(path, inherited.stat).fields
        try:
            parent, group, session, terminal, user, system, start = map(
                int, (*fields[1:5], *fields[13:15], fields[19])
            )
        except ValueError:
            raise MalformedError(f"{path}/stat", f"not numbers: {inherited.stat[:80]!r}") from None
        key = ProcessKey(self.pid, start, parent, group, session, terminal, 0, "", "", "")
        values = [ABSENT] * len(PROCESS.columns)
        for place in _NOTHING_OWN:
            values[place] = 0
        values[_CHILD_USER], values[_CHILD_SYSTEM] = user, system
        if inherited.io:
            values[_READ_CHARS : _READ_CHARS + 7] = parse_io(path, inherited.io)
        return key, values


def _since(now: int, first: int) -> int:
    return ABSENT if ABSENT in (now, first) else now - first

"""Which processes use a GPU, from /proc/PID/fdinfo (Documentation/gpu/drm-usage-stats.rst).

Reading every open file of every process each time would cost far more than all other sources together. So a
process that uses a GPU is read each time, a new one is scanned once when it appears, and the others are
scanned in rotation, a few at a time: soon if the number of their open files has changed, rarely if not.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from joblens.collectors.gpu.drm import fitting, known
from joblens.core.host import Host

_AT_FIRST = 20_000  # files scanned by the first reading, some 0.2 s, so that it is complete
_EACH_TIME = 300  # … and by each later one, beside those of known users
_OF_PROCESS = 2000  # files scanned per process, lowest descriptors first: a user can open a million
_RESCAN = 10  # visits after which a process is scanned again even if its number of files is the same
_UNITS = {b"": 1, b"KiB": 1 << 10, b"MiB": 1 << 20, b"GiB": 1 << 30}
_LINE = re.compile(
    rb"drm-(client|engine-capacity|engine|total-cycles|cycles|resident|memory|total)"
    rb"-([^\s:]+):\s*(\d{1,18})(?:\s+(\w+))?\s*"
)
_OWN_MEMORY = re.compile(rb"(vram|local)\d*")  # other regions are in host memory
_KINDS = (b"resident", b"memory", b"total")  # most exact first; the first two are synonyms

Place = Tuple[str, int]  # bus address and process


class Client(NamedTuple):
    """One open instance of a GPU. Several file descriptors, also of several processes, can share it."""

    driver: str
    bus: str
    id: str
    memory: Optional[int]
    engines: Dict[str, int]  # busy nanoseconds
    cycles: Dict[str, Tuple[int, int, int]]  # busy cycles, total cycles, number of engines of that kind


def parse_fdinfo(data: bytes) -> Optional[Client]:
    """None if it is not a GPU's. Undocumented lines are skipped."""
    if b"drm-driver:" not in data:
        return None
    words: Dict[bytes, str] = {}
    numbers: Dict[bytes, Dict[bytes, int]] = {}
    for line in data.split(b"\n"):
        match = _LINE.fullmatch(line)
        if match:
            kind, name, digits, unit = match.groups()
            if unit in (None, b"ns") or unit in _UNITS:
                numbers.setdefault(kind, {})[name] = int(digits) * _UNITS.get(unit or b"", 1)
        else:
            name, _, value = line.partition(b":")
            words[name] = value.strip().decode("ascii", "replace")
    names = [words.get(key, "") for key in (b"drm-driver", b"drm-pdev")]
    # `drm-client-id: 7` matches as a number of the kind `client` with the name `id`.
    client = str(numbers.get(b"client", {}).get(b"id", ""))
    return Client(names[0], names[1], client, _own_memory(numbers), _engines(numbers), _cycles(numbers))


def _own_memory(numbers: Dict[bytes, Dict[bytes, int]]) -> Optional[int]:
    for kind in _KINDS:
        sizes = [size for name, size in numbers.get(kind, {}).items() if _OWN_MEMORY.fullmatch(name)]
        if sizes:
            return sum(sizes)
    return None


def _engines(numbers: Dict[bytes, Dict[bytes, int]]) -> Dict[str, int]:
    return {_text(name): value for name, value in numbers.get(b"engine", {}).items()}


def _cycles(numbers: Dict[bytes, Dict[bytes, int]]) -> Dict[str, Tuple[int, int, int]]:
    totals, capacities = numbers.get(b"total-cycles", {}), numbers.get(b"engine-capacity", {})
    return {
        _text(name): (busy, totals[name], max(capacities.get(name, 1), 1))
        for name, busy in numbers.get(b"cycles", {}).items()
        if name in totals
    }


def _text(name: bytes) -> str:
    return name.decode("ascii", "replace")


class _User:
    """A process that has a GPU open."""

    def __init__(self) -> None:
        self.files: Dict[str, bool] = {}  # by descriptor, whether it is a GPU's
        self.readings = 0
        # By bus address, client and engine. The time of a closed client still counts for the process.
        self.busy: Dict[Tuple[str, str, str], int] = {}
        self.cycles: Dict[str, Dict[str, Tuple[int, int, int]]] = {}


class Clients:
    def __init__(self, host: Host, drivers: Tuple[str, ...]) -> None:
        self._host, self._drivers = host, drivers
        self._users: Dict[int, _User] = {}
        # Number of open files when scanned, and visits since; ordered by the last visit.
        self._others: Dict[int, Tuple[int, int]] = {}
        self._left = 0
        self._first = True

    def read(self, wanted: Iterable[int] = ()) -> Dict[Place, Dict[str, int]]:
        """Return values of the set `gpu_process` by GPU and process. `wanted` are known to use a GPU."""
        pids = {int(name) for name in self._host.list("proc") if name.isdigit()}
        self._forget(pids)
        self._search(pids, [pid for pid in wanted if pid in pids and pid not in self._users])
        found: Dict[Place, Dict[str, int]] = {}
        seen: Set[Tuple[str, str]] = set()
        for pid in sorted(self._users):  # a shared client counts for the lowest pid
            clients = self._read_user(pid, self._users[pid], seen)
            for bus in {client.bus for client in clients}:
                found[bus, pid] = _add(self._users[pid], bus, [it for it in clients if it.bus == bus])
        return found

    def _forget(self, pids: Set[int]) -> None:
        for pid in [pid for pid in self._users if pid not in pids]:
            del self._users[pid]
        for pid in [pid for pid in self._others if pid not in pids]:
            del self._others[pid]

    def _search(self, pids: Set[int], wanted: List[int]) -> None:
        for pid in wanted:
            self._scan(pid)
        self._left = _AT_FIRST if self._first else _EACH_TIME
        self._first = False
        waiting = list(self._others)
        new = sorted(pids - self._users.keys() - self._others.keys(), reverse=True)  # jobs are young
        for pid in new:
            if self._left <= 0:
                return
            self._scan(pid)
        for pid in waiting:
            if self._left <= 0:
                return
            self._visit(pid)

    def _visit(self, pid: int) -> None:
        self._left -= 1
        before, visits = self._others.pop(pid, (0, 0))
        if before and before == self._count_files(pid) and visits < _RESCAN:
            self._others[pid] = before, visits + 1
        else:
            self._scan(pid)

    def _count_files(self, pid: int) -> int:
        """Return 0 if the kernel does not provide it, as before Linux 6.2."""
        try:
            return self._host.stat(f"proc/{pid}/fd").st_size
        except OSError:
            return 0

    def _scan(self, pid: int) -> None:
        user = _User()
        count = self._count_files(pid)
        for fd in self._list(pid):
            self._left -= 1
            user.files[fd] = self._parse(pid, fd) is not None
        if any(user.files.values()):
            self._users[pid] = user
            self._others.pop(pid, None)
        else:
            self._others[pid] = count, 0
            self._left -= 1

    def _list(self, pid: int) -> List[str]:
        if self._count_files(pid) > _OF_PROCESS:  # listing them all would take long
            return list(map(str, range(_OF_PROCESS)))
        try:
            names = self._host.list(f"proc/{pid}/fdinfo")
        except OSError:  # another user's, or ended
            return []
        return names if len(names) <= _OF_PROCESS else sorted(names, key=int)[:_OF_PROCESS]

    def _parse(self, pid: int, fd: str) -> Optional[Client]:
        try:
            client = parse_fdinfo(self._host.read_once(f"proc/{pid}/fdinfo/{fd}"))
        except OSError:
            return None
        return client if client and client.driver in self._drivers else None

    def _read_user(self, pid: int, user: _User, seen: Set[Tuple[str, str]]) -> List[Client]:
        user.readings += 1
        fds = self._list(pid)
        again = user.readings % _RESCAN == 0  # descriptors are reused
        clients = []
        for fd in fds:
            if not again and not user.files.get(fd, True):
                continue
            client = self._parse(pid, fd)
            user.files[fd] = client is not None
            if client and (client.bus, client.id or f"{pid}/{fd}") not in seen:
                seen.add((client.bus, client.id or f"{pid}/{fd}"))
                clients.append(client)
        if not any(user.files.get(fd) for fd in fds):
            del self._users[pid]
            self._others[pid] = 0, 0
        return clients


def _add(user: _User, bus: str, clients: List[Client]) -> Dict[str, int]:
    sizes = [client.memory for client in clients if client.memory is not None]
    return known(
        {
            "memory_bytes": fitting(sum(sizes)) if sizes else None,
            "busy_seconds": _busy_time(user, bus, clients),
            "busy_ratio": _busy_part(user, bus, clients),
        }
    )


def _busy_time(user: _User, bus: str, clients: List[Client]) -> Optional[int]:
    """Return the sum over all engines. A counter may decrease for a moment; then the larger value holds."""
    for client in clients:
        for engine, time in client.engines.items():
            key = bus, client.id, engine
            user.busy[key] = max(user.busy.get(key, 0), time)
    times = [time for (place, _, _), time in user.busy.items() if place == bus]
    return fitting(sum(times)) if times else None


def _busy_part(user: _User, bus: str, clients: List[Client]) -> Optional[int]:
    """Return the utilization of the busiest engine since the previous reading, by the GPU's own clock."""
    now: Dict[str, Tuple[int, int, int]] = {}
    for client in clients:
        for engine, (busy, clock, capacity) in client.cycles.items():
            so_far, _, _ = now.get(engine, (0, 0, 0))
            now[engine] = so_far + busy, clock, capacity
    before = user.cycles.get(bus, {})
    user.cycles[bus] = now
    parts = [
        (busy - before[engine][0]) * 10_000 // ((clock - before[engine][1]) * capacity)
        for engine, (busy, clock, capacity) in now.items()
        if engine in before and clock > before[engine][1] and busy >= before[engine][0]
    ]
    return min(max(parts), 10_000) if parts else None

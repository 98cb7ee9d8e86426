"""Events of one job in the kernel's log: OOM kills of its processes, and errors of its GPUs."""

from __future__ import annotations

from joblens.core.host import KMSG, Host
from joblens.core.model import GAUGE, Column, Rows, Sample, Schema
from joblens.run.streams import wait_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Collection, Dict, Iterable, List, Optional, Set

    from joblens.attribution.devices import JobName
    from joblens.collectors.kernel_log import Event, KernelLog

EVENT = Schema(
    "event",
    ("cluster", "jobid", "node", "kind", "device", "text", "pid"),
    (Column("seen", GAUGE, "1 at the time of the event"),),
)
# A killed process is gone when the log is read; its pid is reused later than this.
_REMEMBERED_NS = 60 * 10**9


class JobEvents:
    def __init__(self, host: Host, job: JobName, now_ns: Callable[[], int]) -> None:
        self.host, self.job, self.now_ns = host, job, now_ns
        self._read_ns = 0
        self._same_pids = host.counts_pids_as_kernel()
        self._seen: Dict[int, int] = {}  # by pid, when it was last the job's
        self._log: Optional[KernelLog] = None
        try:
            self._fd = host.open_log(KMSG, at_end=True)
        except OSError:  # most users may not read it
            self._fd = -1

    def read(self, pids: Collection[int], buses: Iterable[str]) -> List[Sample]:
        """Return new events, each with its own time."""
        if self._fd < 0:
            return []
        now = self.now_ns()
        self._seen.update(dict.fromkeys(pids, now))
        self._seen = {pid: last for pid, last in self._seen.items() if now - last < _REMEMBERED_NS}
        if self._log is None and wait_readable([self._fd], 0):
            from joblens.collectors.kernel_log import KernelLog  # its patterns take long to load

            self._log = KernelLog(self.host, self.now_ns, self._fd, self._read_ns)
        self._read_ns = now
        if self._log is None:
            return []
        self._log.read_events()
        cards = {_bus(bus) for bus in buses} - {""}
        own = [event for event in self._log.take() if self._is_own(event, cards)]
        return [Sample(event.time_ns, self._row(event)) for event in own]

    def _is_own(self, event: Event, cards: Set[str]) -> bool:
        return (self._same_pids and event.pid in self._seen) or _bus(event.device) in cards

    def _row(self, event: Event) -> Rows:
        return Rows(EVENT, ((*self.job, event.kind, event.device, event.text, event.pid),), [1])


def _bus(text: str) -> str:
    """Normalise 0000:3b:00, 0000:3B:00.0 and 00000000:3B:00.0."""
    parts = text.lower().partition(".")[0].split(":")
    return ":".join([parts[0][-4:], *parts[1:]]) if len(parts) == 3 else ""

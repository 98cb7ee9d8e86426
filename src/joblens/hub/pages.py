"""The hub's pages: its metrics, the status of nodes and sets, and live figures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

import msgspec

from joblens.core.model import COUNTER, GAUGE, NO_KEY, Column, Rows, Schema
from joblens.hub.auth import is_ours
from joblens.hub.connection import Page
from joblens.hub.nodes import (
    GONE,
    LATE,
    LIVE,
    describe_owners,
    job_statuses,
    node_state,
    node_status,
    set_statuses,
)
from joblens.hub.receive import Receiver
from joblens.hub.requests import Request
from joblens.hub.responses import Refused, Response
from joblens.hub.retention import Lag
from joblens.hub.status import StatusPage
from joblens.wire.exposition import OPENMETRICS, PROMETHEUS, Exposition
from joblens.wire.live import LiveNode, LivePage
from joblens.wire.mac import is_same

_TEXT = "text/plain; charset=utf-8"
_FOR_READERS = (
    "a token is required, that of hub.token_file: Authorization: Bearer TOKEN; on the hub's machine root and "
    "the hub's user need none, with http://127.0.0.1 and not from a web page"
)
_LONGEST_DESCRIBING = 0.2  # seconds, as agents wait meanwhile; the next request shows the rest
_WORDS = """\
joblens hub
/metrics   metrics of the hub, for Prometheus
/sets      status of every node, set and job, as JSON
/now       live figures of every node, as JSON
/v1/batch  for agents
"""

HUB = Schema(
    "hub",
    (),
    (
        Column("batches", COUNTER, "batches that were stored"),
        Column("repeats", COUNTER, "duplicate batches"),
        Column("received_bytes", COUNTER, "bytes of the batches that were stored"),
        Column("set_updates", COUNTER, "updates of sets in them, as reported by agents"),
        Column("commits", COUNTER, "syncs of the journal"),
        Column("commit_errors", COUNTER, "syncs that failed"),
        Column("writable", GAUGE, "1 if the journal is writable"),
        Column("waiting_batches", GAUGE, "batches that wait to be written"),
        Column("waiting_bytes", GAUGE, "bytes in memory of batches that are received or wait to be written"),
        Column("journal_bytes", GAUGE, "size of the open segment"),
        Column("segments_sealed", COUNTER, "segments that were sealed for the sinks"),
        Column("connections", GAUGE, "open connections"),
        Column("gaps_of_nodes", GAUGE, "gaps reported by nodes, for instance because of a full spool"),
        Column("gaps_of_sinks", GAUGE, "segments that were deleted before every sink had stored them"),
        Column("gaps_of_damage", GAUGE, "ranges of batches lost to damage of the journal"),
        Column("cpu_seconds", COUNTER, "CPU time of the hub's receiving process", 1, 1_000_000_000),
    ),
)
REFUSED = Schema("hub", ("reason",), (Column("refused", COUNTER, "requests that were refused, by reason"),))
NODES = Schema("hub", ("state",), (Column("nodes", GAUGE, "nodes by state: live, late or gone"),))
CLOCKS = Schema(
    "hub",
    ("cluster", "node"),
    (
        Column(
            "clock_offset_seconds",
            GAUGE,
            "the hub's clock minus the node's, of nodes where it is over 5 s",
            1,
            1000,
        ),
    ),
)
SINK = Schema(
    "hub_sink",
    ("sink",),
    (
        Column("lag_segments", GAUGE, "sealed segments that the sink has not stored yet"),
        Column("lag_bytes", GAUGE, "bytes in them"),
    ),
)
SCHEMAS = (HUB, REFUSED, NODES, CLOCKS, SINK)


class Pages:
    def __init__(self, receiver: Receiver, token: bytes, connections: Callable[[], int]) -> None:
        self._receiver, self._token, self._connections = receiver, token, connections
        self.lags: Mapping[str, Lag] = {}
        self.more: Callable[[], list[Rows]] = list  # metrics of sinks

    def check_reader(self, request: Request, uid: Callable[[], int | None]) -> None:
        """Pages require the token, except for root and the hub's user on this machine.

        `uid` returns the user of the request, None if unknown. Raises Refused.
        """
        given = request.fields.get(b"authorization", b"")
        if self._token and is_same(given, b"Bearer " + self._token):
            return
        if not is_ours(uid()):
            raise Refused(401, "no token", _FOR_READERS)

    def page(self, request: Request) -> Page:
        make = {"/": _welcome, "/metrics": self._metrics, "/sets": self._sets, "/now": self._now}
        if request.path not in make:
            return Page(Response(404, "not found; see /metrics and /sets"), _TEXT)
        if request.method not in ("GET", "HEAD"):
            return Page(Response(405, "only GET is supported"), _TEXT)
        return make[request.path](request)

    def _sets(self, request: Request) -> Page:
        return Page(Response(200, msgspec.json.encode(self.sets()).decode()), "application/json")

    def _now(self, request: Request) -> Page:
        """Return what `joblens top` shows, in the format of an agent's page."""
        now, end = time.time(), time.monotonic() + _LONGEST_DESCRIBING
        nodes = [
            LiveNode(
                cluster=node.cluster,
                node=node.node,
                state=node_state(node, now),
                age_seconds=node.age(now),
                interval_seconds=node.period,
                sets=[*node.now.describe(time.monotonic() < end), *describe_owners(node)],
            )
            for node in self._receiver.nodes
        ]
        return Page(Response(200, json.dumps(LivePage(hub=True, nodes=nodes))), "application/json")

    def _metrics(self, request: Request) -> Page:
        openmetrics = b"application/openmetrics-text" in request.fields.get(b"accept", b"")
        text = Exposition(openmetrics).render(self._rows()).decode()
        return Page(Response(200, text), OPENMETRICS if openmetrics else PROMETHEUS)

    def sets(self) -> StatusPage:
        now, clocks = time.time(), self._receiver.clocks
        nodes = sorted(self._receiver.nodes, key=lambda node: (node.cluster, node.node))
        return StatusPage(
            hub=True,
            nodes=[node_status(node, now, clocks.wrong_since(node)) for node in nodes],
            sets=[item for node in nodes for item in set_statuses(node, now)],
            jobs=[item for node in nodes for item in job_statuses(node)],
            clocks=clocks.changes(),
        )

    def _rows(self) -> list[Rows]:
        receiver, now = self._receiver, time.time()
        states = [node_state(node, now) for node in receiver.nodes]
        wrong = [node for node in receiver.nodes if node.clock_wrong]
        refused = sorted(receiver.refused.items())
        lags = sorted(self.lags.items())
        return [
            Rows(HUB, NO_KEY, self._own()),
            Rows(REFUSED, tuple((reason,) for reason, _ in refused), [count for _, count in refused]),
            Rows(NODES, ((LIVE,), (LATE,), (GONE,)), [states.count(it) for it in (LIVE, LATE, GONE)]),
            Rows(
                CLOCKS,
                tuple((node.cluster, node.node) for node in wrong),
                [round((node.offset or 0.0) * 1000) for node in wrong],
            ),
            Rows(SINK, tuple((sink,) for sink, _ in lags), [number for _, lag in lags for number in lag]),
            *self.more(),
        ]

    def _own(self) -> list[int]:
        receiver, journal = self._receiver, self._receiver.journal
        return [
            receiver.batches,
            receiver.repeats,
            receiver.bytes,
            receiver.updates,
            journal.commits,
            journal.errors,
            int(not journal.trouble),
            receiver.waiting,
            receiver.room.held,
            journal.open_bytes,
            journal.sealed,
            self._connections(),
            receiver.gaps.count["node"],
            receiver.gaps.count["sink"],
            receiver.gaps.count["damage"],
            time.process_time_ns(),
        ]


def _welcome(request: Request) -> Page:
    return Page(Response(200, _WORDS), _TEXT)

"""How many cores and how much memory a node has, by its samples: what a job without a queue may use there."""

from __future__ import annotations

from joblens.record.job import Resources
from joblens.store.lake.lake import Lake
from joblens.store.reader import Span

_AROUND = 300.0  # seconds of samples that are read
_KNOWN = {"time": "TIMESTAMP_NS", "cluster": "VARCHAR", "node": "VARCHAR"}
_TIME = "time BETWEEN make_timestamp_ns($first) AND make_timestamp_ns($last)"
_OF_NODE = f"cluster = $cluster AND node = $node AND {_TIME}"
_CORES = f"SELECT count(DISTINCT cpu) FROM {{lake}} WHERE {_OF_NODE} AND cpu <> 'total'"  # noqa: S608
_MEMORY = f"SELECT max(mem_total_bytes) FROM {{lake}} WHERE {_OF_NODE}"  # noqa: S608


class NodeSizes:
    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._known: dict[tuple[str, str], Resources] = {}

    def of(self, cluster: str, node: str, moment: float) -> Resources:
        """As of the first time that it was known."""
        found = self._known.get((cluster, node)) or self._read(cluster, node, moment)
        if found.cores is not None and found.memory_bytes is not None:
            self._known[cluster, node] = found
        return found

    def _read(self, cluster: str, node: str, moment: float) -> Resources:
        span = Span("", moment - _AROUND, moment)
        cores = self._ask("cpu", {"cpu": "VARCHAR"}, _CORES, span, cluster, node)
        memory = self._ask("memory", {"mem_total_bytes": "BIGINT"}, _MEMORY, span, cluster, node)
        return Resources(nodes=1, cores=float(cores) if cores else None, memory_bytes=memory or None)

    def _ask(
        self, set_name: str, columns: dict[str, str], query: str, span: Span, cluster: str, node: str
    ) -> int | None:
        times = span.nanoseconds()
        files = self._lake.files(set_name, span.dates(), times=(times["first"], times["last"]))
        rows = self._lake.query(files, _KNOWN | columns, query, {"cluster": cluster, "node": node, **times})
        return rows[0][0] if rows else None

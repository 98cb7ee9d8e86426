"""What clients send to the read service."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from joblens.cli.serve import load_serve
from joblens.core.config_files import Layer
from joblens.core.errors import ServerError, UsageError
from joblens.core.json_file import parse_json
from joblens.core.toml import parse_toml
from joblens.serve.errors import ApiError
from joblens.serve.live import filter_now, filter_sets, list_nodes
from joblens.serve.messages import JobsQuery, ReportQuery, SeriesQuery, TokenRequest
from joblens.serve.requests import parse_id, parse_query, read_body
from joblens.serve.tokens import Tokens
from joblens.serve.views import make_filter

from .target import Target, scratch

_DOCS = Path(__file__).parents[2] / "docs"


class _Stream:
    """A request whose body arrives in parts."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def stream(self) -> Any:
        for place in range(0, len(self._data), 100):
            yield self._data[place : place + 100]


def query(data: bytes) -> None:
    text = data.decode("latin-1")
    with suppress(ApiError):
        parse_id(text)
    for kind in (JobsQuery, SeriesQuery, ReportQuery):
        try:
            found = parse_query(text, kind)
        except (ApiError, UsageError):
            continue
        if isinstance(found, JobsQuery):
            make_filter(found)


def body(data: bytes) -> None:
    asyncio.run(read_body(_Stream(data), TokenRequest))  # type: ignore[arg-type]


def tokens(data: bytes) -> None:
    path = scratch() / "tokens.json"
    path.write_bytes(data)
    found = Tokens(path)
    found.check(data.decode("latin-1"), 1.0)
    found.of(None, 1.0)


def settings(data: bytes) -> None:
    load_serve([Layer("x", parse_toml(data.decode("utf-8", "replace"), "x"))])


def hub_pages(data: bytes) -> None:
    try:
        page = parse_json(data)
    except (ValueError, RecursionError):
        return
    for allows in (None, lambda job: job.user == "alice"):
        for read in (filter_sets, lambda page, allows: list_nodes(filter_now(page, allows))):
            try:
                read(page, allows)
            except ServerError:
                continue


NOW = b"""{"hub": true, "nodes": [{"cluster": "fox", "node": "c1", "state": "live", "age_seconds": 1, "sets":
[{"set": "job_info", "time_ns": 1, "labels": ["cluster", "jobid", "node", "user"], "columns": [""],
 "rows": [["fox", "1", "c1", "alice", 1], ["fox", "2", "c1", "bob", 1]]},
{"set": "job", "time_ns": 1, "labels": ["cluster", "jobid", "node"], "columns": ["cpu_seconds"],
 "rows": [["fox", "1", "c1", 1.5], ["fox", "2", "c1", null]]}]}]}"""
SETS = b"""{"hub": true, "nodes": [{"cluster": "fox", "node": "c1", "jobs": 2}], "sets": [], "jobs": [
{"cluster": "fox", "jobid": "1", "node": "c1", "user": "alice", "uid": 7, "sent_by": ["fox", "c1"]}]}"""

TARGETS = (
    Target(
        "serve-query",
        query,
        lambda: [
            b"user=alice&since=7d&tag=a:b&tag=c:d&limit=7&reverse=true&cursor=W10",
            b"set=cpu&columns=a,b&by=node&points=10",
            b"run=1&from=%2B10m&to=13:02",
            b"4242@fox",
        ],
        (ApiError,),
    ),
    Target("serve-body", body, lambda: [b'{"name": "laptop", "days": 7}', b"{}", b"x" * 5000], (ApiError,)),
    Target(
        "serve-tokens",
        tokens,
        lambda: [
            b'[{"id":"5c0d","user":"alice","uid":7,"name":"","created":1.0,"expires":9.0,"digest":"00"}]',
            b"[]",
        ],
    ),
    Target(
        "serve-settings",
        settings,
        lambda: [(_DOCS / "serve.md").read_text().split("```toml\n")[1].split("```")[0].encode()],
    ),
    Target("serve-hub", hub_pages, lambda: [NOW, SETS, b"{}"]),
)

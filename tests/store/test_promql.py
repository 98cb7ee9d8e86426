"""What servers that speak PromQL answer, and how they are asked."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Barrier, Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import ConfigError, ServerError
from joblens.store.tsdb.promql import PromSeries, Response, Server, parse_response, parse_series
from joblens.store.tsdb.resample import as_series, make_grid, resample
from joblens.store.tsdb.series import deduplicate

ODD = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)
_TIMES = st.integers(0, 2 * 10**12).map(lambda it: it / 1000)
_VALUES = st.floats().map(lambda it: str(it).replace("inf", "Inf").replace("nan", "NaN"))
_LABELS = st.dictionaries(
    st.sampled_from(["__name__", "node", "values", 'a"b']),
    st.text(max_size=5) | st.sampled_from(['"values":[[', '\\"values\\":[[1,"2"]]', "]]"]),
    max_size=3,
)
_SERIES = st.fixed_dictionaries(
    {"metric": _LABELS, "values": st.lists(st.tuples(_TIMES, _VALUES).map(list), max_size=4)}
)


def text_of(result: Any, separators: tuple[str, str] | None = (",", ":")) -> bytes:
    return json.dumps(
        {"status": "success", "data": {"result": result}}, separators=separators, ensure_ascii=False
    ).encode("utf-8", "surrogatepass")


@given(st.lists(_SERIES, max_size=4))
def test_samples_are_read_as_json_has_them(result: list[Any]) -> None:
    """Whatever stands in the labels, and however the text is spaced."""
    wanted = [
        PromSeries(it["metric"], [t for t, v in it["values"] if math.isfinite(float(v))],
              [float(v) for _, v in it["values"] if math.isfinite(float(v))])
        for it in result
    ]  # fmt: skip
    for body in (text_of(result), text_of(result, None)):
        assert parse_series(parse_response(body)) == wanted
    times = parse_series(parse_response(text_of(result)), only_times=True)
    assert [one.labels for one in times] == [one.labels for one in wanted]


@given(st.lists(_SERIES, min_size=1, max_size=3), st.integers(0, 400), st.binary(max_size=3))
def test_answers_that_are_damaged(result: list[Any], place: int, other: bytes) -> None:
    """Cut off, or with other bytes in them: series, or one of the errors that are caught."""
    body = text_of(result)
    for damaged in (body[:place], body[:place] + other + body[place + 1 :]):
        with suppress(*ODD):
            parse_series(parse_response(damaged))


@pytest.mark.parametrize(
    "values", [b'[[1,"2","3"],[4]]', b'[["1"]]', b'[[1,"x"]]', b'[[[1],"2"]]', b"[[]]", b"7", b'[[1,"2"']
)
def test_samples_that_are_none(values: bytes) -> None:
    body = b'{"status":"success","data":{"result":[{"metric":{},"values":' + values + b"}]}}"
    with pytest.raises(ODD):
        parse_series(parse_response(body))


def test_a_number_in_place_of_samples() -> None:
    """What the server has written there is not taken for what was cut out."""
    item = {"metric": {}, "values": 1}
    with pytest.raises(ValueError, match="in place of samples"):
        parse_series(Response({"data": {"result": [item, item]}}, [b'1,"2"', b'1,"2"']))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    both = Barrier(2)

    def do_POST(self) -> None:
        """As Prometheus, in chunks; only when two ask at the same time."""
        self.rfile.read(int(self.headers["content-length"]))
        self.both.wait(60)
        body = text_of([{"metric": {"n": "1"}, "values": [[1, "2"]] * 20_000}])
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for begin in range(0, len(body), 5000):
            part = body[begin : begin + 5000]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    def do_GET(self) -> None:
        self.send_response(400)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_several_at_once() -> None:
    """Both are under way before one is answered; answers are in the order of the questions."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as listener:
        Thread(target=listener.serve_forever, daemon=True).start()
        server = Server(f"http://127.0.0.1:{listener.server_port}/")
        first, second = server.concurrently(
            lambda: server.instant("a", 0.0), lambda: [PromSeries({}, [], []), *server.timestamps("b", 0.0)]
        )
        assert first == [PromSeries({"n": "1"}, [1.0] * 20_000, [2.0] * 20_000)]
        assert [len(one.times) for one in second] == [0, 20_000]
        assert second[1].values == []

        def refused() -> list[PromSeries]:
            return [PromSeries({}, [], []) for _ in server.metric_names("x", 0, 1)]

        with pytest.raises(ServerError, match="answers 400"):
            server.concurrently(refused, list)
        server.close()
        listener.shutdown()


@pytest.mark.parametrize(
    "url", ["https://m.example.org/select/0:1/prometheus/", "http://[::1]:9090", "http://prom_1/a%20b"]
)
def test_addresses(url: str) -> None:
    """Also those of VictoriaMetrics' cluster, which have a tenant in their path."""
    assert Server(url).name == url.rstrip("/")


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://a b", "http://user:word@x", "http://x?query=1"]
)
def test_what_is_no_address(url: str) -> None:
    """A password in an address would be on command lines, and is not sent."""
    with pytest.raises(ConfigError, match="bad URL"):
        Server(url)


def test_points() -> None:
    """A step includes its start and excludes its end; its time is that of its last sample, if known."""
    grid = make_grid(100.0, 130.0, 10.0)
    assert (grid.first, grid.last, grid.steps) == (109.999, 139.999, 4)
    assert grid.row(PromSeries({}, [109.999, 129.999], [1.0, 3.0])) == [1.0, None, 3.0, None]
    assert grid.row(PromSeries({}, [1e308, 5.0], [1.0, 3.0])) == [None] * 4
    assert grid.ends([100.0, 109.0, 110.0, 130.0], 130.0) == [109.0, 110.0, 129.999, 130.0]
    found = as_series([{"a": [1.0, None, 3.0, None]}, {}, {}], [109.0, 110.0, 129.0, 130.0], ["a", "b"])
    assert found.times == [109.0, 129.0]
    assert found.last == {"a": [1.0, 3.0], "b": [None, None]}
    one, other = PromSeries({}, [100.0, 110.0], [1.0, 2.0]), PromSeries({}, [100.0, 109.0], [10.0, 20.0])
    folded = resample({"a": [one, other], "b": [one], "c": []}, 100.0, 10.0)
    assert folded.times == [109.0, 110.0]
    assert folded.last == {"a": [20.0, 2.0], "b": [1.0, 2.0]}
    assert folded.mean["a"] == [15.5, 2.0]
    assert folded.peak["a"] == [20.0, 2.0]


def test_what_a_report_from_a_server_loads() -> None:
    """Not what the lake needs, and not what takes long for little."""
    dear = (
        "_duckdb",
        "numpy",
        "pandas",
        "pyarrow",
        "http.client",
        "email",
        "statistics",
        "concurrent.futures",
    )
    code = (
        "import sys, joblens.api.store, joblens.cli.job, joblens.api.from_tsdb, joblens.jobs.from_tsdb\n"
        f"print(*sys.modules.keys() & {set(dear)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_was_written_twice_counts_once() -> None:
    """VictoriaMetrics keeps both, of a batch that a hub has sent again."""
    twice = PromSeries({"node": "c1"}, [1.0, 2.0, 2.0, 3.0], [10.0, 20.0, 20.0, 30.0])
    assert deduplicate(twice) == PromSeries({"node": "c1"}, [1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    assert deduplicate(twice._replace(values=[])) == PromSeries({"node": "c1"}, [1.0, 2.0, 3.0], [])
    alone = PromSeries({}, [1.0, 2.0], [3.0, 4.0])
    assert deduplicate(alone) is alone

"""Queries to a server that speaks PromQL: Prometheus, VictoriaMetrics, Mimir and others.

Most of a response is samples, `[1794807197,"12.5"]` each. Building a list for each takes longer than the
rest of a report. So samples are cut out of the text, the remainder is parsed as JSON, and samples are parsed
as rows of numbers. A JSON string cannot contain the delimiters, because its quotes are escaped.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlencode

from joblens.core.config import split_url
from joblens.core.errors import ConfigError, MalformedError, ServerError, sentence
from joblens.wire.http_client import Client

QUERY_LABEL = "joblens_question"
_LARGEST = 1 << 28  # bytes of a response
_LONGEST_MESSAGE = 300
_BEGIN, _END = b'"values":[[', b"]]"
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


class PromSeries(NamedTuple):
    """The labels of one series, and its finite samples in order of time."""

    labels: dict[str, str]
    times: list[float]
    values: list[float]  # empty if only timestamps were queried


class Response(NamedTuple):
    plain: Any  # parsed JSON, with indexes into `cut` in place of samples
    cut: list[bytes]


Query = Callable[[], list[PromSeries]]


class Server:
    """A server with its open connections. Methods raise ServerError, or MalformedError for a bad response."""

    def __init__(self, url: str, token_file: str = "", ca_file: str = "", timeout: float = 60.0) -> None:
        try:
            self._url = split_url(url)
        except ConfigError:
            raise ConfigError(f"{url!r:.100}: bad URL; expected one like http://127.0.0.1:9090") from None
        self._token_file, self._ca_file, self._timeout = token_file, ca_file, timeout
        self._idle: list[Client] = []
        self.name = url.rstrip("/")

    def instant(self, query: str, time: float) -> list[PromSeries]:
        """Evaluate at one time: one sample per series, or all stored samples of a range selector."""
        return self._series("/api/v1/query", {"query": query, "time": f"{time:.3f}"})

    def timestamps(self, query: str, time: float) -> list[PromSeries]:
        """Return the same as `instant` without values."""
        return self._series("/api/v1/query", {"query": query, "time": f"{time:.3f}"}, only_times=True)

    def range(self, query: str, start: float, end: float, step: float) -> list[PromSeries]:
        steps = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return self._series("/api/v1/query_range", {"query": query, **steps})

    def metric_names(self, selector: str, start: float, end: float) -> list[str]:
        """Return the names of the series that the selector matches in this time range."""
        form = {"match[]": selector, "start": f"{start:.3f}", "end": f"{end:.3f}"}
        found = self._request("/api/v1/label/__name__/values", form, "GET").plain.get("data")
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise MalformedError(self.name, "metric names: expected a list of strings")
        return found

    def failed_targets(self) -> dict[str, str]:
        """Return the last scrape error of each target that is down, by its label `node`."""
        data = self._request("/api/v1/targets", {"state": "active"}, "GET").plain.get("data")
        try:
            return {
                str(it["labels"]["node"]): " ".join(str(it["lastError"]).split())[:_LONGEST_MESSAGE]
                for it in data["activeTargets"]
                if it["health"] == "down"
            }
        except (KeyError, TypeError, AttributeError):
            raise MalformedError(self.name, "/api/v1/targets: expected a list of targets") from None

    def concurrently(self, *queries: Query) -> list[list[PromSeries]]:
        """Run queries in threads: the server works on the next while a response is parsed here."""
        results: list[list[PromSeries]] = [[] for _ in queries]
        errors: list[BaseException] = []

        def run(number: int, query: Query) -> None:
            try:
                results[number] = query()
            except BaseException as error:  # raised again by the thread that waits
                errors.append(error)

        threads = [Thread(target=run, args=pair, daemon=True) for pair in enumerate(queries)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _series(self, path: str, form: Mapping[str, str], only_times: bool = False) -> list[PromSeries]:
        # VictoriaMetrics moves start and end to multiples of the step, but not with nocache.
        response = self._request(path, {**form, "nocache": "1"}, "POST")
        try:
            return parse_series(response, only_times)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
            raise MalformedError(self.name, f"{path}: expected a list of series") from None

    def _request(self, path: str, form: Mapping[str, str], method: str) -> Response:
        try:
            status, body = self._send(path, urlencode(form), method)
        except (OSError, ServerError) as error:
            raise ServerError(f"{self.name}: {sentence(error)}") from None
        try:
            response = parse_response(body)
        except (ValueError, RecursionError):
            response = Response(None, [])
        plain: Any = response.plain
        if not isinstance(plain, dict) or plain.get("status") != "success" or status != 200:
            text = plain.get("error", "") if isinstance(plain, dict) else body.decode("utf-8", "replace")
            why = " ".join(str(text)[: 2 * _LONGEST_MESSAGE].split())[:_LONGEST_MESSAGE]
            raise ServerError(f"{self.name} answers {status}" + (f": {why}" if why else ""))
        return response

    def _send(self, path: str, form: str, method: str) -> tuple[int, bytes]:
        fields = {"Accept": "application/json"}
        if self._token_file:
            fields["Authorization"] = authorization(self._token_file)
        new = not self._idle
        client = Client(self._url, self._timeout, self._ca_file, _LARGEST) if new else self._idle.pop()
        if method == "GET":
            answer = client.get(f"{path}?{form}", fields)
        else:
            typed = {**fields, "Content-Type": "application/x-www-form-urlencoded"}
            answer = client.post(path, typed, form.encode())
        self._idle.append(client)
        length = answer.headers.get("content-length", "")
        if not answer.body and length.isdigit() and int(length) > _LARGEST:
            raise ServerError(f"the response is larger than {_LARGEST >> 20} MiB")
        return answer.status, answer.body


def authorization(path: str) -> str:
    """Return the header for a file with a token, which has no colon (RFC 6750, 2.1), or USER:PASSWORD."""
    secret = Path(path).read_text("utf-8").strip()
    if ":" in secret:
        return f"Basic {base64.b64encode(secret.encode()).decode()}"
    return f"Bearer {secret}"


# Query text. Values are untrusted and are always quoted.


def quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def equals(label: str, value: str) -> str:
    return f"{label}={quote(value)}"


def one_of(label: str, values: Iterable[str]) -> str:
    escaped = (_SPECIAL.sub(lambda found: "\\" + found[0], value) for value in values)
    return f"{label}=~{quote('|'.join(escaped))}"


def duration(seconds: float) -> str:
    """Round up to whole milliseconds."""
    return f"{max(math.ceil(round(seconds * 1000, 6)), 1)}ms"


def union(queries: Mapping[str, str]) -> str:
    """Combine several queries into one; the label QUERY_LABEL of a series has the name of its query."""
    return " or ".join(
        f'label_replace({query}, "{QUERY_LABEL}", {quote(name)}, "", "")' for name, query in queries.items()
    )


# Responses


def parse_response(body: bytes) -> Response:
    """Raises ValueError or RecursionError."""
    first, *pieces = body.split(_BEGIN)
    parts, cut = [first], list[bytes]()
    for piece in pieces:
        samples, end, rest = piece.partition(_END)
        if not end:
            raise ValueError("unterminated list of samples")
        parts += [b'"values":%d' % len(cut), rest]
        cut.append(samples)
    return Response(json.loads(b"".join(parts)), cut)


def parse_series(response: Response, only_times: bool = False) -> list[PromSeries]:
    """Raises KeyError, TypeError, ValueError, IndexError, AttributeError or OverflowError."""
    found, number = list[PromSeries](), 0
    for item in response.plain["data"]["result"]:
        labels = item["metric"]
        if not isinstance(labels, dict) or not all(isinstance(text, str) for text in labels.values()):
            raise ValueError("a label is not a string")
        if type(item.get("values")) is int:
            if item["values"] != number:
                raise ValueError("a number in place of samples")
            times, values = _parse_samples(response.cut[number], only_times)
            number += 1
        else:
            times, values = _parse_pairs(item["values"] if "values" in item else [item["value"]])
        found.append(PromSeries(labels, times, values))
    return found


def _parse_samples(samples: bytes, only_times: bool) -> tuple[list[float], list[float]]:
    words = samples.removesuffix(b'"').replace(b'"],[', b',"').split(b',"')  # time, value, time, value, …
    if len(words) % 2:
        raise ValueError("a time without a value")
    times = list(map(float, words[::2]))
    return (times, []) if only_times else _finite(times, list(map(float, words[1::2])))


def _parse_pairs(pairs: Any) -> tuple[list[float], list[float]]:
    known = [(float(time), float(text)) for time, text in pairs]
    return _finite([time for time, _ in known], [value for _, value in known])


def _finite(times: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    if math.isfinite(sum(times)) and math.isfinite(sum(values)):
        return times, values
    known = [(t, v) for t, v in zip(times, values) if math.isfinite(t) and math.isfinite(v)]
    return [time for time, _ in known], [value for _, value in known]

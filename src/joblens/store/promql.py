"""Asking a server that speaks PromQL: Prometheus, VictoriaMetrics, Mimir and others."""

from __future__ import annotations

import base64
import http.client
import json
import math
import re
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from joblens.errors import ConfigError, MalformedError, ServerError, sentence

_LARGEST = 1 << 28  # bytes of an answer
_LONGEST_ANSWER = 300
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


def authorization(path: str) -> str:
    """Of what a file holds: a token, or USER:PASSWORD. A token has no colon (RFC 6750, 2.1)."""
    secret = Path(path).read_text("utf-8").strip()
    if ":" in secret:
        return f"Basic {base64.b64encode(secret.encode()).decode()}"
    return f"Bearer {secret}"


class Found(NamedTuple):
    """One series: what it is called, and its samples in order of time. What is no number is left out."""

    labels: dict[str, str]
    times: list[float]
    values: list[float]


class Server:
    """One connection that is kept. Everything raises ServerError, or MalformedError for what is no answer."""

    def __init__(self, url: str, token_file: str = "", ca_file: str = "", timeout: float = 60.0) -> None:
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(f"{url!r:.100} is no address such as http://127.0.0.1:9090")
        self._host, self._port = address.hostname, address.port
        self._path = address.path.rstrip("/")
        self._tls = ssl.create_default_context(cafile=ca_file or None) if address.scheme == "https" else None
        self._token_file, self._timeout = token_file, timeout
        self._connection: http.client.HTTPConnection | None = None
        self.name = f"{address.scheme}://{address.netloc.rpartition('@')[2]}{self._path}"

    def instant(self, query: str, time: float) -> list[Found]:
        """A vector has one sample each; of a range selector it is all of them, as they were stored."""
        return self._series("/api/v1/query", {"query": query, "time": f"{time:.3f}", "nocache": "1"})

    def range(self, query: str, start: float, end: float, step: float) -> list[Found]:
        # VictoriaMetrics moves start and end to multiples of the step, but not with nocache.
        asked = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}", "nocache": "1"}
        return self._series("/api/v1/query_range", {"query": query, **asked})

    def names(self, selector: str, start: float, end: float) -> list[str]:
        """Of the series that the selector means in that time."""
        asked = {"match[]": selector, "start": f"{start:.3f}", "end": f"{end:.3f}"}
        found = self._ask("/api/v1/label/__name__/values", asked, "GET")
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise MalformedError(self.name, "names of series are no list of texts")
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _series(self, path: str, asked: Mapping[str, str]) -> list[Found]:
        try:
            return [_parse(item) for item in self._ask(path, asked, "POST")["result"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise MalformedError(self.name, f"what {path} answers is no list of series") from None

    def _ask(self, path: str, asked: Mapping[str, str], method: str) -> Any:
        try:
            status, body = self._send(path, urlencode(asked), method)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ServerError(f"{self.name}: {sentence(error)}") from None
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or answer.get("status") != "success" or status != 200:
            text = answer.get("error", "") if isinstance(answer, dict) else body.decode("utf-8", "replace")
            said = " ".join(str(text).split())[:_LONGEST_ANSWER]
            raise ServerError(f"{self.name} answers {status}" + (f": {said}" if said else ""))
        return answer.get("data")

    def _send(self, path: str, form: str, method: str) -> tuple[int, bytes]:
        fields = {"Accept": "application/json"}
        if self._token_file:
            fields["Authorization"] = authorization(self._token_file)
        for attempt in (1, 2):
            fresh = self._connection is None
            connection = self._connection = self._connection or self._connect()
            try:
                if method == "GET":
                    connection.request("GET", f"{self._path}{path}?{form}", headers=fields)
                else:
                    typed = {**fields, "Content-Type": "application/x-www-form-urlencoded"}
                    connection.request("POST", self._path + path, form, typed)
                answer = connection.getresponse()
                body = answer.read(_LARGEST + 1)
            except (ConnectionError, http.client.HTTPException):
                self.close()
                if fresh or attempt == 2:  # else the server had only ended a connection that was idle
                    raise
                continue
            if len(body) > _LARGEST:
                self.close()
                raise ServerError(f"{self.name} answers with more than {_LARGEST >> 20} MiB")
            return answer.status, body
        raise AssertionError  # not reached

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout, context=self._tls
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)


def _parse(item: Any) -> Found:
    labels = item["metric"]
    if not isinstance(labels, dict) or not all(isinstance(text, str) for text in labels.values()):
        raise ValueError
    pairs = item["values"] if "values" in item else [item["value"]]
    known = [(float(time), value) for time, text in pairs if math.isfinite(value := float(text))]
    return Found(labels, [time for time, _ in known], [value for _, value in known])


def quote(text: str) -> str:
    """As a text in PromQL. Names come from outside."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def equals(label: str, value: str) -> str:
    return f"{label}={quote(value)}"


def one_of(label: str, values: Iterable[str]) -> str:
    return f"{label}=~{quote('|'.join(_SPECIAL.sub(_escape, value) for value in values))}"


def _escape(match: re.Match[str]) -> str:
    return "\\" + match[0]


def lasting(seconds: float) -> str:
    """A duration, never shorter."""
    return f"{max(math.ceil(seconds * 1000), 1)}ms"

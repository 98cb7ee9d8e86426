"""Asking a server that speaks PromQL: Prometheus, VictoriaMetrics, Mimir and others."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlencode

from joblens.core.config import split_url
from joblens.core.errors import ConfigError, MalformedError, ServerError, sentence
from joblens.store.tsdb.promql_answer import Answer, Found, read_answer, read_series
from joblens.wire.http_client import Client

_LARGEST = 1 << 28  # bytes of an answer
_LONGEST_ANSWER = 300
Question = Callable[[], list[Found]]


def authorization(path: str) -> str:
    """Of what a file holds: a token, or USER:PASSWORD. A token has no colon (RFC 6750, 2.1)."""
    secret = Path(path).read_text("utf-8").strip()
    if ":" in secret:
        return f"Basic {base64.b64encode(secret.encode()).decode()}"
    return f"Bearer {secret}"


class Server:
    """Connections are kept. Everything raises ServerError, or MalformedError for what is no answer."""

    def __init__(self, url: str, token_file: str = "", ca_file: str = "", timeout: float = 60.0) -> None:
        try:
            self._url = split_url(url)
        except ConfigError:
            raise ConfigError(f"{url!r:.100} is no address such as http://127.0.0.1:9090") from None
        self._token_file, self._ca_file, self._timeout = token_file, ca_file, timeout
        self._idle: list[Client] = []
        self.name = url.rstrip("/")

    def instant(self, query: str, time: float) -> list[Found]:
        """A vector has one sample each; of a range selector it is all of them, as they were stored."""
        return self._series("/api/v1/query", {"query": query, "time": f"{time:.3f}"})

    def moments(self, query: str, time: float) -> list[Found]:
        """The same without the values."""
        return self._series("/api/v1/query", {"query": query, "time": f"{time:.3f}"}, only_times=True)

    def range(self, query: str, start: float, end: float, step: float) -> list[Found]:
        asked = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return self._series("/api/v1/query_range", {"query": query, **asked})

    def names(self, selector: str, start: float, end: float) -> list[str]:
        """Of the series that the selector means in that time."""
        asked = {"match[]": selector, "start": f"{start:.3f}", "end": f"{end:.3f}"}
        found = self._ask("/api/v1/label/__name__/values", asked, "GET").plain.get("data")
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise MalformedError(self.name, "names of series are no list of texts")
        return found

    def failed_targets(self) -> dict[str, str]:
        """By the label `node`: why Prometheus could not scrape it the last time."""
        data = self._ask("/api/v1/targets", {"state": "active"}, "GET").plain.get("data")
        try:
            return {
                str(it["labels"]["node"]): " ".join(str(it["lastError"]).split())[:_LONGEST_ANSWER]
                for it in data["activeTargets"]
                if it["health"] == "down"
            }
        except (KeyError, TypeError, AttributeError):
            raise MalformedError(self.name, "what /api/v1/targets answers is no list of targets") from None

    def at_once(self, *questions: Question) -> list[list[Found]]:
        """While one answer is read here, the server works on the next."""
        answers: list[list[Found]] = [[] for _ in questions]
        errors: list[BaseException] = []

        def ask(number: int, question: Question) -> None:
            try:
                answers[number] = question()
            except BaseException as error:  # it is raised where the answers are waited for
                errors.append(error)

        threads = [Thread(target=ask, args=pair, daemon=True) for pair in enumerate(questions)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return answers

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _series(self, path: str, asked: Mapping[str, str], only_times: bool = False) -> list[Found]:
        # VictoriaMetrics moves start and end to multiples of the step, but not with nocache.
        answer = self._ask(path, {**asked, "nocache": "1"}, "POST")
        try:
            return read_series(answer, only_times)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
            raise MalformedError(self.name, f"what {path} answers is no list of series") from None

    def _ask(self, path: str, asked: Mapping[str, str], method: str) -> Answer:
        try:
            status, body = self._send(path, urlencode(asked), method)
        except (OSError, ServerError) as error:
            raise ServerError(f"{self.name}: {sentence(error)}") from None
        try:
            answer = read_answer(body)
        except (ValueError, RecursionError):
            answer = Answer(None, [])
        plain: Any = answer.plain
        if not isinstance(plain, dict) or plain.get("status") != "success" or status != 200:
            text = plain.get("error", "") if isinstance(plain, dict) else body.decode("utf-8", "replace")
            said = " ".join(str(text)[: 2 * _LONGEST_ANSWER].split())[:_LONGEST_ANSWER]
            raise ServerError(f"{self.name} answers {status}" + (f": {said}" if said else ""))
        return answer

    def _send(self, path: str, form: str, method: str) -> tuple[int, bytes]:
        fields = {"Accept": "application/json"}
        if self._token_file:
            fields["Authorization"] = authorization(self._token_file)
        client = self._idle.pop() if self._idle else self._connect()
        if method == "GET":
            answer = client.get(f"{path}?{form}", fields)
        else:
            typed = {**fields, "Content-Type": "application/x-www-form-urlencoded"}
            answer = client.post(path, typed, form.encode())
        self._idle.append(client)
        length = answer.headers.get("content-length", "")
        if not answer.body and length.isdigit() and int(length) > _LARGEST:
            raise ServerError(f"it answers with more than {_LARGEST >> 20} MiB")
        return answer.status, answer.body

    def _connect(self) -> Client:
        return Client(self._url, self._timeout, self._ca_file, _LARGEST)

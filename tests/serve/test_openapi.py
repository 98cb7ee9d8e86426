"""The OpenAPI description: it is what the service does, and nothing that fits it makes the service fail."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route as WebRoute

from fuzz.serve import NOW, SETS
from joblens.serve.hub_pages import HubPages
from joblens.serve.messages import JobsQuery
from joblens.serve.openapi import describe
from joblens.serve.policy import Viewer
from joblens.serve.routes import ANYONE, JOBS, LIVE, POLICIES, ROUTES, Question, Route
from joblens.serve.server import Endpoint, make_app
from joblens.serve.service import Service
from joblens.serve.settings import ServeSettings
from joblens.store.catalog.scope import Scope
from joblens.store.home import find_home, make_home
from services.running import free_port

from .serving import ADMIN, SETTINGS, Served, serving


class _Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = {"/now": NOW, "/sets": SETS}[self.path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    if os.geteuid() != 0:
        pytest.skip("only root can act as several users")
    hub = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=hub.serve_forever).start()
    text = SETTINGS + f'[serve]\nhub = "http://127.0.0.1:{hub.server_address[1]}"\nrequests_per_user = 1000\n'
    try:
        with serving(text, free_port()) as it:
            yield it
    finally:
        hub.shutdown()
        hub.server_close()


@pytest.fixture(scope="module")
def token(served: Served) -> str:
    return str(served.ask("POST", "/tokens", ADMIN).json["token"])


@pytest.fixture(scope="module")
def schema(served: Served) -> Any:
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{served.port}/api/v1/openapi.json")


CHECKS = [not_a_server_error, response_schema_conformance, content_type_conformance, status_code_conformance]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_what_fits_the_description(schema: Any, token: str, route: Route, mode: GenerationMode) -> None:
    """Requests made from the description, right and wrong ones: no 5xx, and each answer is as described."""
    operation = schema["/api/v1" + route.path][route.method]
    fields = {"Authorization": f"Bearer {token}"}

    @settings(max_examples=10, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        case.validate_response(case.call(timeout=60, headers=fields), checks=CHECKS)

    with suppress(Unsatisfiable):  # where there is nothing that could be wrong
        ask()


def test_every_route_has_a_policy(tmp_path: Path) -> None:
    """All routes of the application are of the table, and each has a policy; without one it is not made."""
    home = make_home(find_home(tmp_path / "home"))._replace(index_file=tmp_path / "index")
    service = Service(ServeSettings(), home, tmp_path, HubPages(None), print)
    app = make_app(service)
    found: list[Route] = [vars(it.endpoint)["route"] for it in app.routes if isinstance(it, WebRoute)]
    assert len(found) == len(app.routes) == len(ROUTES)
    assert [route.policy for route in found if route.policy not in POLICIES] == []
    with pytest.raises(ValueError, match="has no policy"):
        Endpoint(service, ROUTES[0]._replace(policy=""))
    open_to_all = [route.path for route in ROUTES if route.policy == ANYONE]
    assert open_to_all == ["/health", "/openapi.json"]
    assert all(
        route.policy in (JOBS, LIVE) for route in ROUTES if "jobs" in route.path or "node" in route.path
    )
    service.audit.close()


def test_it_is_encoded_once(tmp_path: Path) -> None:
    """Everybody can ask for it, so it costs next to nothing."""
    home = make_home(find_home(tmp_path / "home"))._replace(index_file=tmp_path / "index")
    service = Service(ServeSettings(), home, tmp_path, HubPages(None), print)
    (route,) = [it for it in ROUTES if it.path == "/openapi.json"]
    question = Question(service, Viewer("", -1, "", "", Scope(False, frozenset(), frozenset())), None)
    for may_gzip in (True, False):
        assert service._encoded(route, question, may_gzip) is service._encoded(route, question, may_gzip)
    assert service._encoded(route, question, True).gzipped
    service.audit.close()


def test_the_description_is_complete() -> None:
    """Every route with its parameters, and errors in one shape; all references exist."""
    found = describe(ROUTES)
    assert found["openapi"] == "3.1.0"
    text = json.dumps(found)
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert names <= found["components"]["schemas"].keys()
    jobs = found["paths"]["/api/v1/jobs"]["get"]
    assert {it["name"] for it in jobs["parameters"]} == set(JobsQuery.__struct_fields__)
    for path in found["paths"].values():
        for operation in path.values():
            errors = {
                json.dumps(it["content"]) for code, it in operation["responses"].items() if code != "200"
            }
            assert len(errors) == 1
            assert operation["summary"]

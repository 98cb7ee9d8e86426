"""The OpenAPI description, generated from the routes and their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from joblens import __version__
from joblens.serve.errors import ErrorBody
from joblens.serve.requests import LONGEST_ID
from joblens.serve.routes import ANYONE, BASE, Route

_REFERENCE = "#/components/schemas/{name}"
_JSON = "application/json"
_TITLE = "joblens"
_FAILURES = {
    "400": "the request is not valid",
    "401": "authentication failed",
    "403": "not allowed in this way",
    "404": "not found, or not yours",
    "409": "several jobs are meant, or a limit is reached",
    "411": "the length of the body is missing",
    "413": "the request is too large",
    "429": "too many requests at once",
    "500": "the service failed",
    "502": "a server behind the service failed",
    "503": "the service cannot answer now",
}
_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer"},
    "munge": {"type": "apiKey", "in": "header", "name": "Authorization"},
}


def describe(routes: Sequence[Route]) -> Any:
    """Return the document as plain data, to be encoded."""
    types = [ErrorBody, *(it for route in routes for it in (route.returns, route.query, route.body) if it)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    names = {id(kind): schema for kind, schema in zip(types, schemas)}
    paths: dict[str, dict[str, object]] = {}
    for route in routes:
        paths.setdefault(BASE + route.path, {})[route.method.lower()] = _operation(route, names, components)
    start = components["Job"]["properties"]["start"]
    start["anyOf"].append({"type": "null"})  # of a job that never started
    for query in {route.query.__name__ for route in routes}:
        components.pop(query, None)
    return {
        "openapi": "3.1.0",
        "info": {"title": _TITLE, "version": __version__, "description": "What jobs did, read-only."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
    }


def _operation(route: Route, names: Mapping[int, Any], components: Mapping[str, Any]) -> Any:
    def body(schema: Any, **more: object) -> Any:
        return {**more, "content": {_JSON: {"schema": schema}}}

    failure = {"$ref": _REFERENCE.format(name=ErrorBody.__name__)}
    properties = components[route.query.__name__].get("properties", {})
    parameters = [{"name": name, "in": "query", "schema": kind} for name, kind in properties.items()]
    if "{id}" in route.path:
        kind = {"type": "string", "minLength": 1, "maxLength": LONGEST_ID}
        parameters.insert(0, {"name": "id", "in": "path", "required": True, "schema": kind})
    found = {
        "operationId": route.answer.__name__,
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            "200": body(names[id(route.returns)], description="success"),
            **{status: body(failure, description=words) for status, words in _FAILURES.items()},
        },
    }
    if route.policy != ANYONE:
        found["security"] = [{}, *({name: []} for name in _SCHEMES)]
    if route.body is not None:
        found["requestBody"] = body(names[id(route.body)], required=False)
    return found
